//! How large images are made: the arithmetic of each processor, in `f64` and rounded as Python does.
//! Sizes are `[height, width]`, pixels.

use crate::error::MediaError;

/// What Gemma 3 does to long images: it shows parts of them as well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PanAndScan {
    /// Shortest side of a part, pixels.
    pub least: u32,
    /// Most parts.
    pub most: u32,
    /// From which ratio of the sides on.
    pub ratio: f64,
}

/// Qwen2-VL (`smart_resize`): sides are multiples of `factor`, the area lies between two, and the
/// shape is kept as far as that goes.
pub(crate) fn smart(
    [height, width]: [u32; 2],
    factor: u32,
    [least, most]: [f64; 2],
) -> Result<[u32; 2], MediaError> {
    let (long, short) = (height.max(width), height.min(width));
    if f64::from(long) / f64::from(short) > 200.0 {
        let reason = "one side is more than 200 times the other".to_owned();
        return Err(MediaError::Shape { width, height, reason });
    }
    let sides = [height, width].map(f64::from);
    let (factor, area) = (f64::from(factor), sides[0] * sides[1]);
    let rounded = sides.map(|side| (side / factor).round_ties_even() * factor);
    let found = rounded[0] * rounded[1];
    let sides = if found > most {
        let shrink = (area / most).sqrt();
        sides.map(|side| ((side / shrink / factor).floor() * factor).max(factor))
    } else if found < least {
        let grow = (least / area).sqrt();
        sides.map(|side| (side * grow / factor).ceil() * factor)
    } else {
        rounded
    };
    Ok(sides.map(|side| side.max(factor) as u32))
}

/// GLM-4.1V: the shape at which no side is shorter than `least`.
pub(crate) fn at_least(size: [u32; 2], least: u32) -> [u32; 2] {
    let scale = size.map(|side| f64::from(least) / f64::from(side));
    let scale = scale[0].max(scale[1]);
    match scale > 1.0 {
        true => size.map(|side| (f64::from(side) * scale) as u32),
        false => size,
    }
}

/// Gemma 4: the largest size of the image's shape that so many patches make, its sides multiples of a
/// merged square.
pub(crate) fn budget(
    [height, width]: [u32; 2],
    [patch, merge]: [u32; 2],
    patches: u32,
) -> Result<[u32; 2], MediaError> {
    let (sides, square) = ([height, width].map(f64::from), f64::from(patch * merge));
    let area = f64::from(patches) * f64::from(patch * patch);
    let factor = (area / (sides[0] * sides[1])).sqrt();
    let [mut down, mut across] = sides.map(|side| (factor * side / square).floor());
    let longest = f64::from(patches / (merge * merge));
    if down == 0.0 && across == 0.0 {
        // (Less than a square in all.)
    } else if down == 0.0 {
        (down, across) = (1.0, (sides[1] / sides[0]).floor().min(longest));
    } else if across == 0.0 {
        (down, across) = ((sides[0] / sides[1]).floor().min(longest), 1.0);
    }
    if down < 1.0 || across < 1.0 || down * across * square * square > area {
        let reason = format!("{patches} patches do not hold its shape");
        return Err(MediaError::Shape { width, height, reason });
    }
    Ok([down, across].map(|n| (n * square) as u32))
}

/// Kimi: its size, shrunk to so many patches, and so many along a side.
pub(crate) fn capped(size: [u32; 2], patch: u32, patches: u32, side: u32) -> [u32; 2] {
    let count = size.map(|side| f64::from((side / patch).max(1)));
    let longest = f64::from(side * patch);
    let scale = (f64::from(patches) / (count[0] * count[1])).sqrt();
    let scale =
        size.iter().fold(scale.min(1.0), |scale, side| scale.min(longest / f64::from(*side)));
    size.map(|own| ((f64::from(own) * scale) as u32).clamp(1, side * patch))
}

/// Llama 4: of all canvases of at most so many tiles the one to which the image has to grow least, or
/// shrink least; of equal ones the smallest. `grow`: the one to which it grows most.
pub(crate) fn least_scaled(size: [u32; 2], tile: u32, most: u32, grow: bool) -> [u32; 2] {
    // (In the order that transformers has: by ratios, as they come first.)
    let mut by_ratio: Vec<(f64, Vec<[u32; 2]>)> = Vec::new();
    for tiles in (1..=most).rev() {
        for rows in (1..=tiles).filter(|rows| tiles % rows == 0) {
            let (ratio, canvas) = (f64::from(rows) / f64::from(tiles / rows), [rows, tiles / rows]);
            match by_ratio.iter_mut().find(|known| known.0 == ratio) {
                Some((_, canvases)) => canvases.push(canvas),
                None => by_ratio.push((ratio, vec![canvas])),
            }
        }
    }
    let canvases: Vec<[u32; 2]> = by_ratio.into_iter().flat_map(|(_, canvases)| canvases).collect();
    let scale = |canvas: &[u32; 2]| {
        let side = |i: usize| (canvas[i] * tile) as f32 / size[i] as f32;
        side(0).min(side(1))
    };
    let scales = || canvases.iter().map(scale);
    let larger = scales().filter(|scale| *scale >= 1.0);
    let chosen = match (grow, larger.clone().next().is_some()) {
        (true, true) => larger.fold(0.0, f32::max),
        (false, true) => larger.fold(f32::INFINITY, f32::min),
        (_, false) => scales().fold(0.0, f32::max),
    };
    let suit = canvases.iter().filter(|canvas| scale(canvas) == chosen);
    let best = suit.min_by_key(|canvas| canvas[0] * canvas[1]).copied().unwrap_or([1, 1]);
    best.map(|side| side * tile)
}

/// Llama 4: the largest size of the image's shape within another.
pub(crate) fn undistorted(size: [u32; 2], within: [u32; 2]) -> [u32; 2] {
    let scale = [0, 1].map(|i| f64::from(within[i]) / f64::from(size[i]));
    let along =
        |i: usize| ((f64::from(size[i]) * scale[1 - i]).floor() as u32).min(within[i]).max(1);
    match scale[1] < scale[0] {
        true => [along(0), within[1]],
        false => [within[0], along(1)],
    }
}

/// The shorter side becomes `edge`, the other follows, cut to whole pixels.
pub(crate) fn shortest([height, width]: [u32; 2], edge: u32) -> [u32; 2] {
    let (long, short) = (height.max(width), height.min(width));
    let other = (u64::from(edge) * u64::from(long)) as f64 / f64::from(short);
    let other = (other as u64).min(u64::from(u32::MAX)) as u32;
    if width <= height { [other, edge] } else { [edge, other] }
}

/// Pixtral: no side is longer than `edge`, and both are multiples of `patch`, rounded up.
pub(crate) fn at_most(size: [u32; 2], edge: u32, patch: u32) -> [u32; 2] {
    let ratio = size.map(|side| f64::from(side) / f64::from(edge));
    let ratio = ratio[0].max(ratio[1]);
    let shrunk = match ratio > 1.0 {
        true => size.map(|side| (f64::from(side) / ratio).floor() as u32),
        false => size,
    };
    shrunk.map(|side| side.div_ceil(patch) * patch)
}

/// The longest side that Idefics3 resizes to.
const IDEFICS_LONGEST: u32 = 4096;

/// Idefics3: the longer side becomes `edge`, the other an even number near.
pub(crate) fn longest([height, width]: [u32; 2], edge: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    let even = |side: f64| (side as u32).next_multiple_of(2);
    let [height, width] = match width >= height {
        true => [even(f64::from(edge) / ratio), edge],
        false => [edge, even(f64::from(edge) * ratio)],
    };
    let [height, width] = [height.max(1), width.max(1)];
    let ratio = f64::from(width) / f64::from(height);
    let sides = if width >= height && width > IDEFICS_LONGEST {
        [(f64::from(IDEFICS_LONGEST) / ratio) as u32, IDEFICS_LONGEST]
    } else if height > width && height > IDEFICS_LONGEST {
        [IDEFICS_LONGEST, (f64::from(IDEFICS_LONGEST) * ratio) as u32]
    } else {
        [height, width]
    };
    sides.map(|side| side.max(1))
}

/// Idefics3: the next multiples of a tile, the longer side first.
pub(crate) fn whole_tiles([height, width]: [u32; 2], tile: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    let up = |side: u32| side.div_ceil(tile) * tile;
    match width >= height {
        true => {
            let width = up(width);
            [up((f64::from(width) / ratio) as u32).max(tile), width]
        }
        false => {
            let height = up(height);
            [height, up((f64::from(height) * ratio) as u32).max(tile)]
        }
    }
}

/// LLaVA: of several canvases the one that shows most of the image, then the one that wastes least.
pub(crate) fn best_canvas(size: [u32; 2], canvases: &[[u32; 2]]) -> [u32; 2] {
    let own = size.map(u64::from);
    let mut best = ([0, 0], 0, u64::MAX);
    for canvas in canvases {
        let scale = [0, 1].map(|i| f64::from(canvas[i]) / f64::from(size[i]));
        let scale = scale[1].min(scale[0]);
        let shown = size.map(|side| (f64::from(side) * scale) as u64);
        let shown = (shown[0] * shown[1]).min(own[0] * own[1]);
        let wasted = (u64::from(canvas[0]) * u64::from(canvas[1])).saturating_sub(shown);
        if shown > best.1 || (shown == best.1 && wasted < best.2) {
            best = (*canvas, shown, wasted);
        }
    }
    // (An image so thin that nothing of it is shown anywhere.)
    if best.0 == [0, 0] { canvases.first().copied().unwrap_or(size) } else { best.0 }
}

/// LLaVA: the largest size of the image's shape that fits a canvas.
pub(crate) fn within(size: [u32; 2], canvas: [u32; 2]) -> [u32; 2] {
    let [down, across] = [0, 1].map(|i| f64::from(canvas[i]) / f64::from(size[i]));
    let other = |side: u32, scale: f64, most: u32| {
        ((f64::from(side) * scale).ceil().min(f64::from(most)) as u32).max(1)
    };
    match across < down {
        true => [other(size[0], across, canvas[0]), canvas[1]],
        false => [canvas[0], other(size[1], down, canvas[1])],
    }
}

/// InternVL: rows and columns of tiles whose shape is nearest the image's; of equal ones the larger
/// while the image has more than half of its pixels.
pub(crate) fn tiling(size: [u32; 2], tile: [u32; 2], [least, most]: [u32; 2]) -> [u32; 2] {
    let mut grids: Vec<[u32; 2]> = Vec::new();
    for columns in 1..=most {
        grids.extend((1..=most).map(|rows| [rows, columns]));
    }
    grids.retain(|[rows, columns]| (least..=most).contains(&(rows * columns)));
    grids.sort_by_key(|[rows, columns]| rows * columns);
    let ratio = f64::from(size[1]) / f64::from(size[0]);
    let area = f64::from(size[0]) * f64::from(size[1]);
    let of_tile = 0.5 * f64::from(tile[0]) * f64::from(tile[1]);
    let (mut best, mut distance) = ([1, 1], f64::INFINITY);
    for [rows, columns] in grids {
        let own = (ratio - f64::from(columns) / f64::from(rows)).abs();
        let larger = own == distance && area > of_tile * f64::from(columns) * f64::from(rows);
        if own < distance || larger {
            (best, distance) = ([rows, columns], own);
        }
    }
    best
}

/// Gemma 3: places and size of the parts that a long image is shown in as well; none where it is not
/// long enough, or the parts would be too small.
pub(crate) fn parts(size: [u32; 2], how: &PanAndScan) -> (Vec<[u32; 2]>, [u32; 2]) {
    let along = usize::from(size[1] >= size[0]);
    let (long, short) = (size[along], size[1 - along]);
    let ratio = f64::from(long) / f64::from(short);
    if ratio < how.ratio {
        return (Vec::new(), size);
    }
    let wanted = ((ratio + 0.5).floor() as u32).min(long / how.least).max(2).min(how.most);
    let mut part = size;
    part[along] = long.div_ceil(wanted);
    if part[0].min(part[1]) < how.least {
        return (Vec::new(), size);
    }
    let place = |i: u32| {
        let mut place = [0, 0];
        place[along] = part[along] * i;
        place
    };
    ((0..wanted).map(place).filter(|place| place[along] < long).collect(), part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qwens_sides_are_multiples_within_two_areas() {
        let of = |size| smart(size, 28, [3136.0, 1_003_520.0]);
        assert_eq!(of([100, 200]), Ok([112, 196]));
        assert_eq!(of([3000, 4000]), Ok([840, 1148]));
        assert_eq!(of([5, 7]), Ok([56, 84]));
        assert_eq!(of([14, 14 * 150]), Ok([28, 700]), "half a square rounds to none, so it grows");
        assert!(of([1, 201]).is_err());
    }

    #[test]
    fn thin_images_have_sides_still() {
        for size in [[1, 4000], [4000, 1], [3, 40_000]] {
            let tiled = whole_tiles(longest(size, 1456), 364);
            assert!(tiled.iter().all(|side| side.is_multiple_of(364) && *side > 0), "{tiled:?}");
            let canvases = [[384, 768], [768, 384]];
            let canvas = best_canvas(size, &canvases);
            assert!(canvases.contains(&canvas));
            let inner = within(size, canvas);
            assert!(inner[0] > 0 && inner[0] <= canvas[0] && inner[1] > 0 && inner[1] <= canvas[1]);
        }
        assert_eq!(shortest([1, u32::MAX], u32::MAX), [u32::MAX; 2]);
        assert_eq!(at_most([1, 40_000], 1540, 28), [0, 1540]);
    }

    #[test]
    fn canvases_of_tiles_distort_nothing() {
        let fits = |size, most| least_scaled(size, 224, most, false);
        assert_eq!(fits([200, 300], 3), [224, 448]);
        assert_eq!(fits([200, 200], 16), [224, 224]);
        assert_eq!(fits([3000, 3000], 16), [896, 896]);
        assert_eq!(least_scaled([200, 200], 224, 16, true), [896, 896]);
        assert_eq!(undistorted([200, 300], [450, 200]), [133, 200]);
        assert_eq!(undistorted([800, 600], [450, 1300]), [450, 337]);
    }

    #[test]
    fn budgets_and_short_sides() {
        assert_eq!(budget([1000, 1000], [16, 3], 2520), Ok([768, 768]));
        assert_eq!(budget([10, 10_000], [16, 3], 2520), Ok([48, 13_440]));
        assert!(budget([1000, 1000], [16, 3], 8).is_err());
        assert_eq!(at_least([10, 20], 28), [28, 56]);
        assert_eq!(at_least([100, 20], 28), [140, 28]);
        assert_eq!(at_least([100, 200], 28), [100, 200]);
    }

    #[test]
    fn tiles_follow_the_shape() {
        assert_eq!(tiling([448, 448], [448, 448], [1, 12]), [1, 1]);
        assert_eq!(tiling([800, 1600], [448, 448], [1, 12]), [2, 4]);
        assert_eq!(tiling([200, 400], [448, 448], [1, 12]), [1, 2]);
        assert_eq!(tiling([1600, 400], [448, 448], [1, 12]), [4, 1]);
    }

    #[test]
    fn long_images_are_shown_in_parts() {
        let how = PanAndScan { least: 256, most: 4, ratio: 1.2 };
        assert_eq!(parts([300, 310], &how).0.len(), 0);
        assert_eq!(parts([300, 1000], &how), (vec![[0, 0], [0, 334], [0, 668]], [300, 334]));
        assert_eq!(parts([2000, 400], &how).0, [[0, 0], [500, 0], [1000, 0], [1500, 0]]);
        assert_eq!(parts([100, 1000], &how).0.len(), 0);
    }
}
