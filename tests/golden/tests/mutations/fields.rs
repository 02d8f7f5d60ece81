//! Which rows of `CHANGES` perturb each field of a spec. Structs and variants are taken apart whole,
//! so that a field or variant that is added does not compile until it has its place here.

use tokenmill_models::spec::*;

/// A field and the rows that perturb it, or a reason that begins with `!` why there is none.
pub type Field = (&'static str, &'static [&'static str]);

macro_rules! fields {
    ($all:ident, $type:ty, $of:path { $($field:ident: $rows:expr),* $(,)? }) => {{
        #[allow(irrefutable_let_patterns)]
        fn _whole(value: &$type) {
            if let $of { $($field: _,)* } = value {}
        }
        $($all.push((concat!(stringify!($of), ".", stringify!($field)), &$rows));)*
    }};
}

/// Every field of every struct and variant.
pub fn all() -> Vec<Field> {
    let mut all = Vec::new();
    whole(&mut all);
    outputs(&mut all);
    layers(&mut all);
    rotations(&mut all);
    mixers(&mut all);
    feeds(&mut all);
    all
}

fn whole(all: &mut Vec<Field>) {
    fields!(
        all,
        ModelSpec,
        ModelSpec {
            arch: ["! a name"],
            vocab: ["vocab"],
            hidden: ["hidden"],
            context: ["! the longest request; no number of a shorter one depends on it"],
            embed: ["! below"],
            layers: ["layers"],
            streams: ["streams"],
            final_norm: ["final_norm.eps", "final_norm.kind"],
            output: ["! below"],
            draft_layers: ["! layers that are not run"],
            media: ["! of models that see: `vision`"],
        }
    );
    fields!(
        all,
        Embed,
        Embed {
            scale: ["embed.scale"],
            positions: ["embed.positions", "embed.positions.first"],
            norm: ["embed.norm.eps"],
            width: ["embed.width"],
            per_layer: ["embed.per_layer.norm.eps"],
        }
    );
    fields!(
        all,
        PerLayer,
        PerLayer {
            width: ["embed.per_layer.width"],
            norm: ["embed.per_layer.norm.eps"],
            scale: ["embed.per_layer.scale"],
            projection_scale: ["embed.per_layer.projection_scale"],
        }
    );
    fields!(
        all,
        Norm,
        Norm {
            kind: ["norm_in.kind", "final_norm.kind"],
            eps: ["norm_in.eps", "norm_out.eps", "norm_sum.eps", "final_norm.eps"],
            offset: ["norm_in.offset", "norm_out.offset"],
        }
    );
    fields!(
        all,
        Streams,
        Streams {
            count: ["streams.count"],
            norm: ["streams.norm.eps"],
            rank: ["streams.rank"],
            scaled: ["streams.scaled"],
        }
    );
}

fn outputs(all: &mut Vec<Field>) {
    fn _variants(output: &Output) {
        match output {
            Output::Logits { .. } | Output::Pooled { .. } | Output::Score { .. } => {}
            Output::Projected { .. } | Output::Hidden => {} // (the second is what the others are made of)
        }
    }
    fields!(all, Output, Output::Logits { scale: ["output.scale"], softcap: ["output.softcap"] });
    fields!(all, Output, Output::Pooled { kind: ["output.pool"], normalise: ["output.normalise"] });
    fields!(
        all,
        Output,
        Output::Projected {
            cols: ["output.projected.cols"],
            frame: ["! what becomes of tokens before: tests of servers"],
        }
    );
    fields!(
        all,
        Output,
        Output::Score {
            kind: ["output.score.kind"],
            act: ["output.score.act"],
            norm: ["output.score.norm"],
        }
    );
}

fn layers(all: &mut Vec<Field>) {
    fn _variants(body: &Body, join: Join) {
        match body {
            Body::Mix(_) | Body::Ffn(_) | Body::LayerInput(_) => {}
        }
        match join {
            Join::Sequential | Join::Parallel => {}
        }
    }
    fields!(
        all,
        Layer,
        Layer { branches: ["branch.dropped"], join: ["join"], scaled: ["layer.scaled"] }
    );
    fields!(
        all,
        Branch,
        Branch {
            norm_in: ["norm_in.eps", "norm_in.kind", "norm_in.offset"],
            body: ["layer_input.act"],
            norm_out: ["norm_out.eps", "norm_out.offset"],
            norm_sum: ["norm_sum.eps"],
            scale: ["branch.scale"],
        }
    );
}

fn rotations(all: &mut Vec<Field>) {
    fn _variants(scaling: &RopeScaling) {
        match scaling {
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => {}
            RopeScaling::Yarn { .. } | RopeScaling::Factors { .. } => {}
            RopeScaling::Proportional { .. } | RopeScaling::Tensor { .. } => {}
        }
    }
    fields!(
        all,
        RopeSpec,
        RopeSpec {
            dims: ["attention.rope.dims"],
            theta: ["attention.rope.theta", "latent.rope.theta"],
            pairing: ["attention.rope.pairing", "latent.rope.pairing"],
            scaling: ["attention.rope.scaling", "latent.rope.scaling"],
            axes: ["! of models that see: `vision`"],
        }
    );
    fields!(all, RopeScaling, RopeScaling::Linear { factor: ["rope.linear.factor"] });
    fields!(
        all,
        RopeScaling,
        RopeScaling::Llama3 {
            factor: ["rope.llama3.factor"],
            low: ["rope.llama3.low"],
            high: ["rope.llama3.high"],
            original: ["rope.llama3.original"],
        }
    );
    fields!(
        all,
        RopeScaling,
        RopeScaling::Yarn {
            factor: ["rope.yarn.factor"],
            beta_fast: ["rope.yarn.beta_fast"],
            beta_slow: ["rope.yarn.beta_slow"],
            original: ["rope.yarn.original"],
            magnitude: ["rope.yarn.magnitude"],
            truncate: ["rope.yarn.truncate"],
        }
    );
    fields!(
        all,
        RopeScaling,
        RopeScaling::Factors { factors: ["rope.factors"], magnitude: ["rope.factors.magnitude"] }
    );
    fields!(all, RopeScaling, RopeScaling::Proportional { part: ["attention.rope.part"] });
    fields!(
        all,
        RopeScaling,
        RopeScaling::Tensor {
            magnitude: ["! of GGUF files; of those `pairs` and `architectures`"],
        }
    );
}

fn mixers(all: &mut Vec<Field>) {
    fn _variants(mixer: &Mixer, norm: &QkNorm, kv: KvSource) {
        match mixer {
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::DeltaNet(_) => {}
            Mixer::Mamba(_) | Mixer::ShortConv(_) => {}
        }
        match norm {
            QkNorm::None | QkNorm::Head(_) | QkNorm::Whole(_) | QkNorm::Unit(_) => {}
        }
        match kv {
            KvSource::Own | KvSource::KeysAreValues | KvSource::Layer(_) => {}
        }
    }
    fields!(
        all,
        Attention,
        Attention {
            heads: ["attention.heads"],
            kv_heads: ["attention.kv_heads"],
            head_dim: ["attention.head_dim"],
            scale: ["attention.scale"],
            rope: ["attention.rope"],
            position_scale: [
                "attention.position_scale",
                "attention.position_scale.beta",
                "attention.position_scale.every",
                "attention.position_scale.offset",
            ],
            qk_norm: ["attention.qk_norm", "attention.qk_norm.eps"],
            v_norm: ["attention.v_norm", "attention.v_norm.eps"],
            kv: ["attention.kv"],
            mask: ["attention.mask", "attention.mask.full"],
            softcap: ["attention.softcap"],
            sinks: ["attention.sinks"],
            gated: ["attention.gated"],
            multipliers: ["! below"],
            blocks: ["! of models that see: `vision`"],
        }
    );
    fields!(
        all,
        Multipliers,
        Multipliers {
            input: ["attention.multipliers.input"],
            key: ["attention.multipliers.key"],
            output: ["attention.multipliers.output"],
        }
    );
    fields!(
        all,
        Latent,
        Latent {
            heads: ["latent.heads"],
            q_lora: ["latent.q_lora"],
            kv_lora: ["latent.kv_lora"],
            nope: ["latent.nope"],
            rope_dim: ["latent.rope_dim"],
            v_dim: ["latent.v_dim"],
            scale: ["latent.scale"],
            norm: ["latent.norm.eps"],
            rope: ["latent.rope.theta", "latent.rope.pairing", "latent.rope.scaling"],
        }
    );
    fields!(
        all,
        DeltaNet,
        DeltaNet {
            k_heads: ["delta.k_heads"],
            v_heads: ["delta.v_heads"],
            k_dim: ["delta.k_dim"],
            v_dim: ["delta.v_dim"],
            key_head: ["delta.key_head"],
            kernel: ["delta.kernel"],
            norm: ["delta.norm.eps"],
        }
    );
    fields!(
        all,
        Mamba,
        Mamba {
            heads: ["mamba.heads"],
            head_dim: ["mamba.head_dim"],
            groups: ["mamba.groups"],
            state_dim: ["mamba.state_dim"],
            kernel: ["mamba.kernel"],
            dt_limit: ["mamba.dt_limit"],
            norm: ["mamba.norm", "mamba.norm.eps", "mamba.norm.order"],
            in_scale: ["mamba.in_scale"],
            out_scale: ["mamba.out_scale"],
            part_scales: [
                "mamba.part_scales.z",
                "mamba.part_scales.x",
                "mamba.part_scales.b",
                "mamba.part_scales.c",
                "mamba.part_scales.dt",
            ],
        }
    );
    fields!(all, ShortConv, ShortConv { kernel: ["short_conv.kernel"] });
}

fn feeds(all: &mut Vec<Field>) {
    fn _variants(ffn: &Ffn, weigh: Weigh, fused: GateUp) {
        match ffn {
            Ffn::Gated { .. } | Ffn::Beside { .. } | Ffn::Plain { .. } | Ffn::Experts(_) => {}
            Ffn::Swish { .. } => {} // of encoders of images: `vision`
        }
        match weigh {
            Weigh::Output | Weigh::Input => {}
        }
        match fused {
            GateUp::Alternate | GateUp::Halves => {}
            GateUp::Turned | GateUp::TurnedAlternate => {}
        }
    }
    fields!(
        all,
        Ffn,
        Ffn::Gated {
            width: ["ffn.width"],
            act: ["ffn.act"],
            gate_scale: ["ffn.gate_scale"],
            out_scale: ["ffn.out_scale"],
            cutoff: ["ffn.cutoff"],
        }
    );
    fields!(
        all,
        Ffn,
        Ffn::Beside {
            width: ["ffn.width"],
            act: ["ffn.act"],
            norm: ["ffn.beside.norm.eps"],
            experts: ["experts.top"],
        }
    );
    fields!(all, Ffn, Ffn::Plain { width: ["ffn.width"], act: ["ffn.act"] });
    fields!(
        all,
        Experts,
        Experts {
            count: ["experts.count"],
            top: ["experts.top"],
            width: ["experts.width"],
            act: ["ffn.act"],
            score: ["experts.score"],
            groups: ["experts.groups", "experts.groups.keep"],
            normalise: ["experts.normalise"],
            scale: ["experts.scale"],
            weigh: ["experts.weigh"],
            fused: ["experts.fused"],
            shared: ["experts.shared"],
        }
    );
    fields!(
        all,
        SharedExpert,
        SharedExpert { width: ["experts.shared.width"], gated: ["experts.shared.gated"] }
    );
}
