//! tokenmill for Python: thin classes over the front door. What needs Python's own libraries (types, arrays) is in
//! `python/tokenmill/__init__.py`. The interpreter's lock is given up while anything is waited for.

use std::collections::BTreeMap;
use std::sync::Mutex;

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokenmill::serde_json::{self, Value};
use tokenmill::{Completion, Error, Lent, Piece, SharedChat, Stream};
use tokenmill::{begun, options_of, sampling_of, settled};

create_exception!(_tokenmill, TokenmillError, PyRuntimeError, "What failed, with the numbers.");

fn told(error: Error) -> PyErr {
    match error {
        Error::Option { .. } => PyValueError::new_err(error.to_string()),
        error => TokenmillError::new_err(error.to_string()),
    }
}

fn json_of(text: &str) -> PyResult<Value> {
    serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A model. Usable from any thread, not in a process that fork made of the one which opened it.
#[pyclass(frozen)]
struct Model(tokenmill::Model);

#[pymethods]
impl Model {
    #[new]
    fn new(py: Python<'_>, name: &str, options: &str) -> PyResult<Self> {
        let options = options_of(json_of(options)?).map_err(told)?;
        py.detach(|| tokenmill::Model::open_with(name, &options)).map(Self).map_err(told)
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn context(&self) -> u32 {
        self.0.context()
    }

    #[getter]
    fn width(&self) -> u32 {
        self.0.width()
    }

    /// Counts of what it does, and has done since it was opened.
    fn stats(&self) -> BTreeMap<&'static str, u64> {
        let stats = self.0.stats();
        BTreeMap::from([
            ("running", stats.running.into()),
            ("waiting", (stats.waiting + stats.queued_requests).into()),
            ("requests", stats.requests),
            ("finished", stats.finished),
            ("dropped", stats.cancelled),
            ("failed", stats.failed),
            ("prompt_tokens", stats.prompt_tokens),
            ("cached_tokens", stats.cached_tokens),
            ("generated_tokens", stats.generated_tokens),
            ("steps", stats.steps),
        ])
    }

    fn chat(&self) -> Chat {
        Chat(SharedChat::new(self.0.chat()))
    }

    fn complete(&self, py: Python<'_>, prompt: &str, sampling: &str) -> PyResult<Answer> {
        let sampling = sampling_of(json_of(sampling)?).map_err(told)?;
        let made = py.detach(|| self.0.complete(prompt, &sampling)).map_err(told)?;
        Ok(Answer::new(Source::Text(Box::new(made))))
    }

    fn embed(&self, py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Vec<f32>>> {
        py.detach(|| self.0.embed(texts)).map_err(told)
    }

    fn rerank(&self, py: Python<'_>, query: &str, documents: Vec<String>) -> PyResult<Vec<f32>> {
        py.detach(|| self.0.rerank(query, documents)).map_err(told)
    }
}

/// A conversation.
#[pyclass(frozen)]
struct Chat(SharedChat);

#[pymethods]
impl Chat {
    fn system(&self, text: &str) -> PyResult<()> {
        let told_it = |chat: &mut tokenmill::Chat| {
            chat.system(text);
        };
        self.0.with(told_it).map_err(told)
    }

    fn sampling(&self, said: &str) -> PyResult<()> {
        let said = sampling_of(json_of(said)?).map_err(told)?;
        self.0.with(|chat| chat.sampling = said).map_err(told)
    }

    fn thinking(&self, tokens: Option<u32>) -> PyResult<()> {
        self.0.with(|chat| chat.thinking = tokens).map_err(told)
    }

    fn must_call(&self, must: bool) -> PyResult<()> {
        self.0.with(|chat| chat.must_call = must).map_err(told)
    }

    fn show(&self, file: Vec<u8>) -> PyResult<()> {
        self.0.with(|chat| chat.show(&file).map(drop)).map_err(told)?.map_err(told)
    }

    /// `run` gets the arguments as JSON and gives a text.
    fn tool(&self, name: &str, about: &str, schema: &str, run: Py<PyAny>) -> PyResult<()> {
        let schema = settled(json_of(schema)?);
        let run = move |arguments: Value| {
            let found = Python::attach(|py| {
                let found = run.call1(py, (arguments.to_string(),))?;
                found.extract::<String>(py)
            });
            found.map_err(|error| error.to_string().into())
        };
        let offer = |chat: &mut tokenmill::Chat| {
            chat.tool_of_schema(name, about, schema, run);
        };
        self.0.with(offer).map_err(told)
    }

    #[pyo3(signature = (question, schema=None))]
    fn stream(&self, py: Python<'_>, question: &str, schema: Option<&str>) -> PyResult<Answer> {
        let schema = schema.map(json_of).transpose()?.map(settled);
        let made = py.detach(|| self.0.stream(question, schema)).map_err(told)?;
        Ok(Answer::new(Source::Chat(Box::new(made))))
    }
}

enum Source {
    Chat(Box<Stream<Lent>>),
    Text(Box<Completion>),
    Ended,
}

/// An answer as it comes: an iterator of its parts.
#[pyclass(frozen)]
struct Answer(Mutex<Running>);

struct Running {
    source: Source,
    /// Tokens generated, and those of prompts: known when it is whole.
    tokens: (u32, u32),
}

impl Answer {
    fn new(source: Source) -> Self {
        Self(Mutex::new(Running { source, tokens: (0, 0) }))
    }
}

/// Kind, text, and name of the tool where there is one.
type Told = (&'static str, String, Option<String>);

#[pymethods]
impl Answer {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Told>> {
        py.detach(|| {
            // (A tool that reads the answer it is called by would wait for itself.)
            let Ok(mut running) = self.0.try_lock() else {
                return Err(TokenmillError::new_err("the answer is being read"));
            };
            let (next, usage) = match &mut running.source {
                Source::Chat(stream) => {
                    let next = stream.next();
                    (next, Some(stream.ending().1))
                }
                Source::Text(completion) => {
                    let next = completion.next().map(|text| text.map(Piece::Text));
                    (next, completion.usage())
                }
                Source::Ended => (None, None),
            };
            if let Some(usage) = usage {
                running.tokens = (usage.completion_tokens, usage.prompt_tokens);
            }
            if !matches!(next, Some(Ok(_))) {
                running.source = Source::Ended;
            }
            next.transpose().map(|piece| piece.map(parts)).map_err(told)
        })
    }

    /// Tokens generated, and those of prompts.
    fn tokens(&self) -> PyResult<(u32, u32)> {
        let running = self.0.try_lock();
        running
            .map(|running| running.tokens)
            .map_err(|_| TokenmillError::new_err("the answer is being read"))
    }

    /// Computes nothing more of it.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if let Ok(mut running) = self.0.try_lock() {
                running.source = Source::Ended;
            }
        });
    }
}

fn parts(piece: Piece) -> Told {
    match piece {
        Piece::Text(text) => ("text", text, None),
        Piece::Reasoning(text) => ("reasoning", text, None),
        Piece::Call { name, arguments } => ("call", arguments.to_string(), Some(name)),
        Piece::Found { name, text } => ("found", text, Some(name)),
    }
}

/// What is known of a JSON document by its beginning, as JSON; None: nothing is.
#[pyfunction]
fn known(text: &str) -> Option<String> {
    begun(text).map(|value| value.to_string())
}

/// The version of the engine that this module holds.
#[pyfunction]
fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

#[pymodule]
fn _tokenmill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TokenmillError", module.py().get_type::<TokenmillError>())?;
    module.add_class::<Model>()?;
    module.add_class::<Chat>()?;
    module.add_class::<Answer>()?;
    module.add_function(wrap_pyfunction!(known, module)?)?;
    module.add_function(wrap_pyfunction!(version, module)?)
}
