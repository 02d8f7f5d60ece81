//! An Ollama registry: a manifest by name, then its layers by digest, into the own store.

use crate::disk::Disk;
use crate::download::{Downloader, Remote, get_small};
use crate::env::Limits;
use crate::error::StoreError;
use crate::http::{Ask, Http, plain_url};
use crate::name::OllamaName;
use crate::ollama::{self, Blob, Flaw, Layers};
use crate::own::LocalModel;
use crate::progress::{OnProgress, Progress};
use std::path::{Path, PathBuf};

/// A registry and the folders its models may lie in.
pub(crate) struct Registry<'a> {
    pub http: &'a Http,
    pub disk: &'a Disk,
    pub limits: &'a Limits,
    /// Address, without a slash at the end.
    pub endpoint: &'a str,
    /// The own folder of the same layout as Ollama's.
    pub own: &'a Path,
    /// Ollama's folders, which are only read.
    pub others: &'a [PathBuf],
}

/// Registries speak several dialects; this one has the layers in the manifest itself.
const MANIFEST_KIND: &str = "application/vnd.docker.distribution.manifest.v2+json";

impl Registry<'_> {
    /// Fetches what is missing, then writes the manifest: from then on the model has its name.
    pub(crate) fn fetch(
        &self,
        name: &OllamaName,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        let OllamaName { namespace, model, tag, .. } = name;
        let url = format!("{}/v2/{namespace}/{model}/manifests/{tag}", self.endpoint);
        on(Progress::Trying(&plain_url(&url)));
        let ask = Ask { accept: Some(MANIFEST_KIND), ..Ask::default() };
        let most = ollama::MANIFEST_BYTES;
        let text = get_small(self.http, self.limits, &url, &ask, most, on)
            .map_err(|error| refused(name, error))?;
        let layers = Layers::read(&text).map_err(|flaw| match flaw {
            Flaw::Bad(why) => StoreError::BadAnswer { url: plain_url(&url), why },
            Flaw::Unsupported(what) => ollama::unsupported(name, &what),
        })?;
        // The small ones first: what they say may spare the large one.
        let mut small = Vec::new();
        for blob in &layers.small {
            small.push(self.fetch_blob(name, blob, on)?);
        }
        let defaults = ollama::defaults(name, &layers, &small)?;
        let model = self.fetch_blob(name, &layers.model, on)?;
        self.disk.write_whole(&ollama::manifest_path(self.own, name), &text)?;
        Ok(ollama::local_model(name, &layers, model, small, defaults))
    }

    fn fetch_blob(
        &self,
        name: &OllamaName,
        blob: &Blob,
        on: &mut OnProgress<'_>,
    ) -> Result<PathBuf, StoreError> {
        let path = ollama::blob_path(self.own, &blob.digest);
        if !path.exists()
            && let Some(other) = ollama::find_blob(self.others, blob)
            && self.is_whole(&other, blob, on)?
        {
            return Ok(other);
        }
        let OllamaName { namespace, model, .. } = name;
        let hex = blob.digest.hex();
        let url = format!("{}/v2/{namespace}/{model}/blobs/sha256:{hex}", self.endpoint);
        let title = format!("{} {}", blob.kind, hex.get(..12).unwrap_or_default());
        let remote =
            Remote { url: &url, name: &title, bytes: Some(blob.bytes), digest: Some(blob.digest) };
        let lock = self.own.join("locks").join(format!("{hex}.lock"));
        let downloader = Downloader { http: self.http, disk: self.disk, limits: self.limits };
        let fetched = downloader.fetch(&remote, &path, &lock, on);
        fetched.map_err(|error| refused(name, error))?;
        Ok(path)
    }

    /// True if another program's blob has the bytes its name says.
    fn is_whole(
        &self,
        path: &Path,
        blob: &Blob,
        on: &mut OnProgress<'_>,
    ) -> Result<bool, StoreError> {
        let found = blob.digest.of_file_like(path, &mut |done, total| {
            on(Progress::Verify { file: &blob.kind, done, total });
        })?;
        Ok(found == blob.digest)
    }
}

/// What a refusal of an Ollama registry means.
fn refused(name: &OllamaName, error: StoreError) -> StoreError {
    let StoreError::Refused { url, status, hint } = error else { return error };
    let plain = name.to_string();
    let plain = plain.trim_start_matches("ollama:");
    let hint = match status {
        401 | 403 => format!(
            "the model is private; tokenmill has no log-in there\n\
             try: ollama pull {plain}, then tokenmill reads it where Ollama keeps it"
        ),
        404 => format!("the registry has no model {plain}: check model and tag"),
        _ => hint,
    };
    StoreError::Refused { url, status, hint }
}
