//! Documents by what they have to do with a question: `cargo run --release --example rank -- MODEL`, of an
//! encoder or a reranker.

use tokenmill::{Error, Model};

fn main() -> Result<(), Error> {
    let name =
        std::env::args().nth(1).unwrap_or("sentence-transformers/all-MiniLM-L6-v2".to_owned());
    let model = Model::open(&name)?;
    let documents = ["Bread needs flour.", "The sky is blue.", "Light scatters in air."];
    let mut ranked: Vec<(f32, &str)> =
        model.rerank("Why is the sky blue?", documents)?.into_iter().zip(documents).collect();
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (rank, document) in ranked {
        println!("{rank:.3} {document}");
    }
    Ok(())
}
