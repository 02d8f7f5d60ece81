//! `preprocessor_config.json` as a [`Processor`]: what it says, and what the class that it names does
//! where it says nothing (transformers 5).

use serde_json::Value;

use crate::error::MediaError;
use crate::picture::Transparency;
use crate::processor::{Arithmetic, Processor, Shape};
use crate::resample::{Backend, Filter};
use crate::sizes::PanAndScan;

/// What of the encoder a processor goes by; the files of some say it themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tower {
    /// Side of a patch, pixels.
    pub patch: u32,
    /// Patches to a side of the square that becomes one row of the model.
    pub merge: u32,
}

/// Mean and deviation of the pixels that CLIP was trained with.
const CLIP: [[f32; 3]; 2] =
    [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]];
/// Between -1 and 1.
const HALF: [[f32; 3]; 2] = [[0.5; 3]; 2];

/// As they are.
const PLAIN: [[f32; 3]; 2] = [[0.0; 3], [1.0; 3]];

/// How the shape is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Native,
    Film,
    Budget,
    Capped,
    Chunks,
    Fixed,
    Centre,
    Split,
    Next,
    OneVision,
    Longest,
    Tiles,
}

/// Classes, without `Fast` or `Pil` behind: what each does where its file is silent.
const CLASSES: &[(&str, Kind, Filter, [[f32; 3]; 2])] = &[
    ("Qwen2VLImageProcessor", Kind::Native, Filter::Bicubic, CLIP),
    ("Qwen2_5_VLImageProcessor", Kind::Native, Filter::Bicubic, CLIP),
    ("Glm4vImageProcessor", Kind::Film, Filter::Bicubic, CLIP),
    ("Gemma4ImageProcessor", Kind::Budget, Filter::Bicubic, PLAIN),
    ("Kimi_K25ImageProcessor", Kind::Capped, Filter::Bicubic, HALF),
    ("KimiVLImageProcessor", Kind::Capped, Filter::Bicubic, CLIP),
    ("Llama4ImageProcessor", Kind::Chunks, Filter::Bilinear, HALF),
    ("SiglipImageProcessor", Kind::Fixed, Filter::Bicubic, HALF),
    ("Gemma3ImageProcessor", Kind::Fixed, Filter::Bilinear, HALF),
    ("CLIPImageProcessor", Kind::Centre, Filter::Bicubic, CLIP),
    ("CLIPFeatureExtractor", Kind::Centre, Filter::Bicubic, CLIP),
    ("LlavaImageProcessor", Kind::Centre, Filter::Bicubic, CLIP),
    ("Idefics3ImageProcessor", Kind::Split, Filter::Lanczos, HALF),
    ("SmolVLMImageProcessor", Kind::Split, Filter::Lanczos, HALF),
    ("LlavaNextImageProcessor", Kind::Next, Filter::Bicubic, CLIP),
    ("LlavaOnevisionImageProcessor", Kind::OneVision, Filter::Bicubic, CLIP),
    ("PixtralImageProcessor", Kind::Longest, Filter::Bicubic, CLIP),
    ("GotOcr2ImageProcessor", Kind::Tiles, Filter::Bicubic, CLIP),
];

/// The one processor that Pillow alone does, with keys of its own.
const KIMI_VL: &str = "KimiVL";
const KIMI_VL_KEYS: &[&str] =
    &["patch_size", "pad_input", "in_token_limit", "merge_kernel_size", "image_mean", "image_std"];

/// Keys of a size, and what is said where it has others.
const SIDES: [&str; 2] = ["height", "width"];
const HIGH_AND_WIDE: &str = "it must have height and width alone";

/// Longest side that a file may ask for, pixels.
const MOST_SIDE: u64 = 16_384;
/// Most canvases, and most tiles.
const MOST_TILES: u64 = 128;

impl Processor {
    /// Reads the description of a processor.
    ///
    /// # Errors
    /// A class that is not built, or a value that makes no sense.
    pub fn read(config: &Value, tower: Tower) -> Result<Self, MediaError> {
        let named = ["image_processor_type", "feature_extractor_type"];
        let class = named.iter().find_map(|key| config.get(key)?.as_str()).unwrap_or_default();
        let base = class.strip_suffix("Fast").or(class.strip_suffix("Pil")).unwrap_or(class);
        let Some(&(_, kind, filter, [mean, std])) = CLASSES.iter().find(|row| row.0 == base) else {
            let what = match class {
                "" => "without a name (image_processor_type)".to_owned(),
                other => other.chars().take(80).collect(),
            };
            let known: Vec<&str> = CLASSES.iter().map(|row| row.0).collect();
            return Err(MediaError::Unsupported { what, known: known.join(", ") });
        };
        // (Its own code passes over all keys but these.)
        let own = base.starts_with(KIMI_VL).then(|| only(config, KIMI_VL_KEYS));
        let keys = Keys(own.as_ref().unwrap_or(config));
        if keys.flag("do_resize")? == Some(false) {
            return Err(wrong("do_resize", &Value::Bool(false), "images have to be resized"));
        }
        let filter = keys.filter()?.unwrap_or(filter);
        let rescale = match keys.flag("do_rescale")? {
            Some(false) => 1.0,
            _ => keys.number("rescale_factor", [1e-6, 1e6])?.unwrap_or(1.0 / 255.0),
        };
        let plain = kind == Kind::Budget;
        let shifts = keys.flag("do_normalize")?;
        if plain && shifts == Some(true) {
            return Err(wrong("do_normalize", &Value::Bool(true), "values are not shifted here"));
        }
        if !plain && shifts == Some(false) {
            return Err(wrong("do_normalize", &Value::Bool(false), "values have to be shifted"));
        }
        let mean = keys.channels("image_mean")?.unwrap_or(mean);
        let std = keys.channels("image_std")?.unwrap_or(std);
        if let Some(zero) = std.iter().find(|s| s.abs() < 1e-6) {
            return Err(wrong("image_std", &Value::from(*zero), "values are divided by it"));
        }
        let native = matches!(kind, Kind::Native | Kind::Film | Kind::Budget | Kind::Capped);
        let merge_key = if plain { "pooling_kernel_size" } else { "merge_size" };
        let film = matches!(kind, Kind::Native | Kind::Film);
        let own = |key, default| {
            if native { keys.size(key, 256).map(|v| v.unwrap_or(default)) } else { Ok(default) }
        };
        Ok(Self {
            shape: keys.shape(kind, class)?,
            patch: bounded("patch_size", own("patch_size", tower.patch)?, 256)?,
            merge: match keys.twice("merge_kernel_size")?.filter(|_| class.starts_with(KIMI_VL)) {
                Some(merge) => bounded("merge_kernel_size", merge, 16)?,
                None => bounded(merge_key, own(merge_key, tower.merge)?, 16)?,
            },
            frames: match film {
                true => bounded("temporal_patch_size", own("temporal_patch_size", 2)?, 8)?,
                false => 1,
            },
            filter,
            backend: keys.backend(class, (kind, filter))?,
            rescale,
            mean,
            std,
            arithmetic: match kind {
                Kind::Budget => Arithmetic::Scaled,
                Kind::Chunks => Arithmetic::Bf16,
                _ => Arithmetic::Usual,
            },
            transparency: match kind {
                Kind::Split => Transparency::White,
                _ => Transparency::Dropped,
            },
        })
    }
}

/// A description with some of its keys.
fn only(config: &Value, keys: &[&str]) -> Value {
    let kept = keys.iter().filter_map(|key| Some(((*key).to_owned(), config.get(key)?.clone())));
    Value::Object(kept.collect())
}

fn bounded(key: &'static str, value: u32, most: u32) -> Result<u32, MediaError> {
    match (1..=most).contains(&value) {
        true => Ok(value),
        false => Err(wrong(key, &Value::from(value), "it is out of range")),
    }
}

fn wrong(key: &'static str, value: &Value, reason: &'static str) -> MediaError {
    let value = value.to_string().chars().take(80).collect();
    MediaError::Config { key, value, reason }
}

/// The keys of a file; null says nothing.
struct Keys<'a>(&'a Value);

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn flag(&self, key: &'static str) -> Result<Option<bool>, MediaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(key, value, "it must be true or false"))
    }

    fn number(&self, key: &'static str, [low, high]: [f64; 2]) -> Result<Option<f64>, MediaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (low..=high).contains(number));
        number.map(Some).ok_or_else(|| wrong(key, value, "it is no number in range"))
    }

    fn size(&self, key: &'static str, most: u64) -> Result<Option<u32>, MediaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        side(key, value, most).map(Some)
    }

    /// Three numbers, or one for all.
    fn channels(&self, key: &'static str) -> Result<Option<[f32; 3]>, MediaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let one = |value: &Value| value.as_f64().filter(|n| n.abs() < 1e6).map(|n| n as f32);
        let read = match value {
            Value::Array(items) => {
                let read: Option<Vec<f32>> = items.iter().map(one).collect();
                read.and_then(|numbers| <[f32; 3]>::try_from(numbers).ok())
            }
            value => one(value).map(|number| [number; 3]),
        };
        read.map(Some).ok_or_else(|| wrong(key, value, "it must be three numbers"))
    }

    /// By Pillow's numbers.
    fn filter(&self) -> Result<Option<Filter>, MediaError> {
        let Some(value) = self.get("resample") else { return Ok(None) };
        match value.as_u64() {
            Some(1) => Ok(Some(Filter::Lanczos)),
            Some(2) => Ok(Some(Filter::Bilinear)),
            Some(3) => Ok(Some(Filter::Bicubic)),
            _ => {
                Err(wrong("resample", value, "1 (Lanczos), 2 (bilinear) and 3 (bicubic) are built"))
            }
        }
    }

    /// torchvision's, but for Lanczos, which models were trained with before it had that, and for
    /// files that ask for Pillow's.
    fn backend(&self, class: &str, (kind, filter): (Kind, Filter)) -> Result<Backend, MediaError> {
        const KEY: &str = "resample";
        let pillow = self.flag("use_fast")? == Some(false)
            || class.ends_with("Pil")
            || class.starts_with(KIMI_VL);
        match (pillow, filter == Filter::Lanczos) {
            (false, true) if kind != Kind::Split => {
                let value = self.get(KEY).cloned().unwrap_or_default();
                Err(wrong(KEY, &value, "Lanczos is Pillow's (\"use_fast\": false)"))
            }
            (false, false) => Ok(Backend::Torchvision),
            _ => Ok(Backend::Pillow),
        }
    }

    /// The numbers of an object that has these keys and no others.
    fn exactly<const N: usize>(
        &self,
        key: &'static str,
        names: [&str; N],
        reason: &'static str,
    ) -> Result<Option<[u32; N]>, MediaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let said = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let mut sides = [0; N];
        if said.count() != N {
            return Err(wrong(key, value, reason));
        }
        for (found, name) in sides.iter_mut().zip(names) {
            let one = value.get(name).ok_or_else(|| wrong(key, value, reason))?;
            *found = side(key, one, MOST_SIDE)?;
        }
        Ok(Some(sides))
    }

    /// Height and width: an object of both, or a number.
    fn square(&self, key: &'static str) -> Result<Option<[u32; 2]>, MediaError> {
        match self.get(key) {
            Some(number @ Value::Number(_)) => Ok(Some([side(key, number, MOST_SIDE)?; 2])),
            _ => self.exactly(key, SIDES, HIGH_AND_WIDE),
        }
    }

    /// The longest side that images are made.
    fn longest(&self, key: &'static str) -> Result<Option<u32>, MediaError> {
        let edge = self.exactly(key, ["longest_edge"], "it must have longest_edge alone")?;
        Ok(edge.map(|[edge]| edge))
    }

    /// A shorter side that is given by its name.
    fn shortest(&self, key: &'static str) -> Result<Option<u32>, MediaError> {
        let named = self.get(key).and_then(Value::as_object);
        match named.is_some_and(|sides| sides.get("shortest_edge").is_some_and(|v| !v.is_null())) {
            true => {
                let edge = self.exactly(key, ["shortest_edge"], "it must have one edge alone")?;
                Ok(edge.map(|[edge]| edge))
            }
            false => Ok(None),
        }
    }

    fn shape(&self, kind: Kind, class: &str) -> Result<Shape, MediaError> {
        match kind {
            Kind::Native => self.native([56 * 56, 28 * 28 * 1280], false),
            Kind::Film => self.native([112 * 112, 28 * 28 * 15_000], true),
            Kind::Budget => self.budget(),
            Kind::Capped if class.starts_with(KIMI_VL) => self.limited(),
            Kind::Capped => self.capped(),
            Kind::Chunks => self.chunks(),
            Kind::Fixed => Ok(Shape::Fixed {
                size: self.exactly("size", SIDES, HIGH_AND_WIDE)?.unwrap_or([224; 2]),
                parts: self.pan_and_scan()?,
            }),
            Kind::Centre => self.centre(class),
            Kind::Split => Ok(Shape::Split {
                edge: self.longest("size")?.unwrap_or(4 * 364),
                tile: self.longest("max_image_size")?.unwrap_or(364),
                cut: self.flag("do_image_splitting")?.unwrap_or(true),
            }),
            Kind::Next | Kind::OneVision => self.anyres(kind),
            Kind::Longest => Ok(Shape::Longest { edge: self.longest("size")?.unwrap_or(1024) }),
            Kind::Tiles => self.tiles(),
        }
    }

    fn budget(&self) -> Result<Shape, MediaError> {
        const KEY: &str = "max_soft_tokens";
        let rows = self.size(KEY, 1120)?.unwrap_or(280);
        if ![70, 140, 280, 560, 1120].contains(&rows) {
            return Err(wrong(KEY, &rows.into(), "70, 140, 280, 560 and 1120 are built"));
        }
        let merge =
            bounded("pooling_kernel_size", self.size("pooling_kernel_size", 16)?.unwrap_or(3), 16)?;
        Ok(Shape::Budget { patches: rows * merge * merge })
    }

    fn capped(&self) -> Result<Shape, MediaError> {
        let patches = self.size("max_patches", 1 << 16)?.unwrap_or(16_384);
        let Some(size) = self.get("size") else { return Ok(Shape::Capped { patches, side: 512 }) };
        let read = |key: &str| side("size", size.get(key).unwrap_or(&Value::Null), 4096);
        let (high, wide) = (read("max_height")?, read("max_width")?);
        match high == wide {
            true => Ok(Shape::Capped { patches, side: high }),
            false => Err(wrong("size", size, "max_height and max_width must be equal")),
        }
    }

    /// As [`capped`](Self::capped), by the keys of Kimi-VL's own code, whose rotations end at 512 patches.
    fn limited(&self) -> Result<Shape, MediaError> {
        const PADS: &str = "pad_input";
        if self.flag(PADS)? != Some(true) {
            let value = self.get(PADS).cloned().unwrap_or_default();
            return Err(wrong(PADS, &value, "images have to be filled up"));
        }
        let patches = self.size("in_token_limit", 1 << 16)?.unwrap_or(4096);
        Ok(Shape::Capped { patches, side: 511 })
    }

    /// The side of a square that a list says twice.
    fn twice(&self, key: &'static str) -> Result<Option<u32>, MediaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_array().map(Vec::as_slice) {
            Some([one, other]) if one == other => side(key, one, 256).map(Some),
            _ => Err(wrong(key, value, "it must be two equal numbers")),
        }
    }

    fn chunks(&self) -> Result<Shape, MediaError> {
        let size = self.square("size")?.unwrap_or([336; 2]);
        if size[0] != size[1] {
            let value = self.get("size").cloned().unwrap_or_default();
            return Err(wrong("size", &value, "tiles must be square"));
        }
        let most = self.size("max_patches", MOST_TILES)?.unwrap_or(16);
        let grow = self.flag("resize_to_max_canvas")?.unwrap_or(false);
        Ok(Shape::Chunks { tile: size[0], most, grow })
    }

    /// Smallest and largest areas, where a file says nothing `usual`.
    fn native(&self, usual: [u64; 2], film: bool) -> Result<Shape, MediaError> {
        let size = self.get("size");
        let both = |names: [&str; 2]| {
            let there = |map: &Value, name: &str| map.get(name).is_some_and(|v| !v.is_null());
            let top = names.iter().all(|name| self.get(name).is_some());
            top || size.is_some_and(|size| names.iter().all(|name| there(size, name)))
        };
        let pixels = !film && both(["min_pixels", "max_pixels"]);
        if let Some(size) = size
            && !both(["shortest_edge", "longest_edge"])
            && !pixels
        {
            return Err(wrong("size", size, "it must have shortest_edge and longest_edge"));
        }
        let area = |edge: &str, key: &'static str, default: u64| {
            let value = self.get(key).filter(|_| !film).or_else(|| {
                size.and_then(|size| size.get(edge).or(size.get(key))).filter(|v| !v.is_null())
            });
            let Some(value) = value else { return Ok(default) };
            let number = value.as_u64().filter(|n| (1..=1 << 26).contains(n));
            number.ok_or_else(|| wrong(key, value, "it is no number of pixels in range"))
        };
        let least = area("shortest_edge", "min_pixels", usual[0])?;
        let most = area("longest_edge", "max_pixels", usual[1])?;
        match least <= most {
            true => Ok(Shape::Native { least, most, film }),
            false => Err(wrong("min_pixels", &least.into(), "it is more than max_pixels")),
        }
    }

    fn pan_and_scan(&self) -> Result<Option<PanAndScan>, MediaError> {
        if self.flag("do_pan_and_scan")? != Some(true) {
            return Ok(None);
        }
        Ok(Some(PanAndScan {
            least: self.size("pan_and_scan_min_crop_size", MOST_SIDE)?.unwrap_or(256),
            most: self.size("pan_and_scan_max_num_crops", MOST_TILES)?.unwrap_or(4),
            ratio: self.number("pan_and_scan_min_ratio_to_activate", [1.0, 1e6])?.unwrap_or(1.2),
        }))
    }

    fn centre(&self, class: &str) -> Result<Shape, MediaError> {
        const CROPS: &str = "do_center_crop";
        const CROP: &str = "crop_size";
        const GROUND: &str = "background_color";
        let named = self.get("size").is_some_and(Value::is_object);
        let edge = self.shortest("size")?;
        let size = if edge.is_some() { None } else { self.square("size")? };
        let crops = self.flag(CROPS)? != Some(false);
        let crop = self.square(CROP)?.unwrap_or([224; 2]);
        let value = |key: &str| self.get(key).cloned().unwrap_or_default();
        let square = class.starts_with("Llava") && self.flag("do_pad")? == Some(true);
        if square && self.get(GROUND).is_some() {
            return Err(wrong(GROUND, &value(GROUND), "bars have the mean colour"));
        }
        match (edge, size) {
            (None, Some(size)) if named && (!crops || crop == size) && !square => {
                Ok(Shape::Fixed { size, parts: None })
            }
            (None, Some(_)) if named => {
                let reason = "size and crop_size must be the same, or one edge be given";
                Err(wrong("size", &value("size"), reason))
            }
            _ if !crops => Err(wrong(CROPS, &Value::Bool(false), "a middle has to be cut out")),
            (edge, size) => {
                let edge = edge.or(size.map(|size| size[0])).unwrap_or(224);
                if crop.iter().any(|side| *side > edge) {
                    let reason = "the middle that is cut out must lie within size";
                    return Err(wrong(CROP, &value(CROP), reason));
                }
                Ok(Shape::Centre { edge, crop, square })
            }
        }
    }

    fn anyres(&self, kind: Kind) -> Result<Shape, MediaError> {
        let (usual, crops) = match kind {
            Kind::OneVision => (384, self.get("crop_size").is_some()),
            _ => (224, self.flag("do_center_crop")? != Some(false)),
        };
        let edge = self.shortest("size")?.map(|edge| [edge; 2]);
        let size = edge.map_or_else(|| self.square("size"), |edge| Ok(Some(edge)))?;
        let size = size.unwrap_or([usual; 2]);
        let crop = self.square("crop_size")?.unwrap_or([usual; 2]);
        if size[0] != size[1] || crops && crop != size {
            let value = self.get("size").cloned().unwrap_or_default();
            let reason = "tiles must be square, and crop_size the same";
            return Err(wrong("size", &value, reason));
        }
        let tile = size[0];
        let canvases = match self.get("image_grid_pinpoints") {
            Some(value) => pinpoints(value, tile)?,
            None => {
                let usual = match kind {
                    Kind::OneVision => grid(384),
                    _ => {
                        [[1, 2], [2, 1], [2, 2], [3, 1], [1, 3]].map(|c| c.map(|n| n * 336)).into()
                    }
                };
                pinpoints(&serde_json::json!(usual), tile)?
            }
        };
        Ok(Shape::Anyres { canvases, tile, alone: kind == Kind::OneVision })
    }

    fn tiles(&self) -> Result<Shape, MediaError> {
        let tile = self.square("size")?.unwrap_or([384; 2]);
        // InternVL's own processor cuts whatever this file says.
        let class = self.get("processor_class").and_then(Value::as_str).unwrap_or_default();
        let cut = class == "InternVLProcessor" || self.flag("crop_to_patches")? == Some(true);
        let least = self.size("min_patches", MOST_TILES)?.unwrap_or(1);
        let most = self.size("max_patches", MOST_TILES)?.unwrap_or(12);
        if least > most {
            return Err(wrong("min_patches", &least.into(), "it is more than max_patches"));
        }
        Ok(match cut {
            true => Shape::Tiles { tile, least, most },
            false => Shape::Tiles { tile, least: 1, most: 1 },
        })
    }
}

fn side(key: &'static str, value: &Value, most: u64) -> Result<u32, MediaError> {
    let number = value.as_u64().filter(|number| (1..=most).contains(number));
    match number.map(u32::try_from) {
        Some(Ok(number)) => Ok(number),
        _ => Err(wrong(key, value, "it is no number in range")),
    }
}

/// Pairs of height and width.
/// Canvases of one to six tiles of that side along each side.
pub fn grid(tile: u32) -> Vec<[u32; 2]> {
    let grid = (1..=6).flat_map(|rows| (1..=6).map(move |columns| [rows, columns]));
    grid.map(|side| side.map(|n| n * tile)).collect()
}

fn pinpoints(value: &Value, tile: u32) -> Result<Vec<[u32; 2]>, MediaError> {
    const KEY: &str = "image_grid_pinpoints";
    let bad = || wrong(KEY, value, "it must be pairs of multiples of a tile's size");
    let items = value.as_array().filter(|items| !items.is_empty()).ok_or_else(bad)?;
    if items.len() as u64 > MOST_TILES {
        return Err(bad());
    }
    let pair = |item: &Value| {
        let pair = item.as_array().filter(|pair| pair.len() == 2).ok_or_else(bad)?;
        let sides = [side(KEY, &pair[0], MOST_SIDE)?, side(KEY, &pair[1], MOST_SIDE)?];
        let fits = sides.iter().all(|side| side.is_multiple_of(tile));
        if fits { Ok(sides) } else { Err(bad()) }
    };
    items.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TOWER: Tower = Tower { patch: 14, merge: 1 };

    #[test]
    fn files_say_what_their_class_does_not() {
        let qwen = json!({
            "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16,
            "size": { "shortest_edge": 65536, "longest_edge": 16777216 },
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        });
        let read = Processor::read(&qwen, TOWER).expect("reads");
        assert_eq!(read.shape, Shape::Native { least: 65536, most: 16_777_216, film: false });
        assert_eq!((read.patch, read.merge, read.frames), (16, 1, 2));
        assert_eq!((read.backend, read.mean), (Backend::Torchvision, [0.5; 3]));
        let old = json!({
            "image_processor_type": "Qwen2VLImageProcessor", "merge_size": 2,
            "min_pixels": 3136, "max_pixels": 12845056, "use_fast": false,
        });
        let read = Processor::read(&old, TOWER).expect("reads");
        assert_eq!(read.shape, Shape::Native { least: 3136, most: 12_845_056, film: false });
        assert_eq!((read.merge, read.backend, read.mean), (2, Backend::Pillow, CLIP[0]));
        let smol = json!({
            "image_processor_type": "SmolVLMImageProcessor", "size": { "longest_edge": 2048 },
            "max_image_size": { "longest_edge": 512 }, "resample": 1,
        });
        let read = Processor::read(&smol, TOWER).expect("reads");
        assert_eq!(read.shape, Shape::Split { edge: 2048, tile: 512, cut: true });
        assert_eq!((read.backend, read.transparency), (Backend::Pillow, Transparency::White));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let of = |mut config: Value, key: &str, value: Value| {
            config[key] = value;
            Processor::read(&config, TOWER).expect_err("refused").to_string()
        };
        let clip = json!({ "image_processor_type": "CLIPImageProcessor" });
        let next = json!({ "image_processor_type": "LlavaNextImageProcessor" });
        for (config, key, value) in [
            (&clip, "resample", json!(0)),
            (&clip, "size", json!({ "shortest_edge": 0 })),
            (&clip, "size", json!({ "shortest_edge": 100_000 })),
            (&clip, "crop_size", json!(300)),
            (&clip, "image_std", json!([0.5, 0.0, 0.5])),
            (&clip, "image_mean", json!([0.5])),
            (&clip, "rescale_factor", json!("a")),
            (&clip, "do_resize", json!(false)),
            (&clip, "do_normalize", json!(false)),
            (&next, "image_grid_pinpoints", json!([[336, 300]])),
            (&next, "image_grid_pinpoints", json!([])),
        ] {
            let told = of(config.clone(), key, value.clone());
            assert!(told.contains(key), "{key} {value}: {told}");
        }
        let told = of(clip, "image_processor_type", json!("DonutImageProcessor"));
        assert!(told.contains("Donut") && told.contains("Qwen2VLImageProcessor"), "{told}");
        assert!(Processor::read(&json!({}), TOWER).is_err());
        assert!(Processor::read(&json!([]), TOWER).is_err());
    }
}
