//! The Hugging Face hub: lists a repository, brings the chosen files into the shared cache.

use crate::digest::Digest;
use crate::disk::{Disk, taken_bytes, with_suffix};
use crate::download::{Downloader, Remote, get_small, has_room};
use crate::env::Limits;
use crate::error::{StoreError, shown};
use crate::http::{Ask, Http, plain_url};
use crate::hub_cache::{HubCache, is_commit, local_model};
use crate::own::LocalModel;
use crate::pick::{Choice, ListedFile, choose, is_safe_path};
use crate::progress::{OnProgress, Progress};
use serde::Deserialize;

/// The hub and the cache it fills.
pub(crate) struct Hub<'a> {
    pub http: &'a Http,
    pub disk: &'a Disk,
    pub limits: &'a Limits,
    pub cache: &'a HubCache,
    /// Address, without a slash at the end.
    pub endpoint: &'a str,
}

/// A repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Commit.
    pub commit: String,
    /// Files.
    pub files: Vec<ListedFile>,
}

#[derive(Deserialize)]
struct ApiModel {
    sha: String,
    #[serde(default)]
    siblings: Vec<ApiFile>,
}

#[derive(Deserialize)]
struct ApiFile {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<ApiLfs>,
}

#[derive(Deserialize)]
struct ApiLfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// One pinned file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PinnedFile<'a> {
    pub repo: &'a str,
    pub commit: &'a str,
    pub file: &'a str,
    pub sha256: &'a str,
    pub bytes: u64,
}

impl Hub<'_> {
    /// Lists, chooses, fetches what is missing, then names it: the reference is written last.
    pub(crate) fn fetch(
        &self,
        repo: &str,
        rev: &str,
        quant: Option<&str>,
        name: &str,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        on(Progress::Trying(&plain_url(&format!("{}/{repo}", self.endpoint))));
        let listing = self.list(repo, rev, on)?;
        let choice = choose(&listing.files, quant).map_err(|none| StoreError::NoChoice {
            place: repo.to_string(),
            wanted: shown(&none.wanted),
            choices: none.choices.join(", "),
            hint: format!("try: tokenmill pull {repo}:QUANT with one of them"),
        })?;
        self.has_room(repo, choice.files())?;
        let mut fetched = Vec::new();
        for file in choice.files() {
            fetched.push(self.fetch_file(repo, &listing.commit, file, on)?);
        }
        // config.json last: without it a half-named folder is no model.
        fetched.sort_by_key(|f| f.path == "config.json");
        for file in &fetched {
            if let Some(digest) = &file.digest {
                self.cache.link(self.disk, repo, &listing.commit, &file.path, digest)?;
            }
        }
        self.cache.write_ref(self.disk, repo, rev, &listing.commit)?;
        let choice = match choice {
            Choice::Gguf(_) => Choice::Gguf(fetched),
            Choice::Folder(_) => Choice::Folder(fetched),
        };
        Ok(local_model(&self.cache.snapshot(repo, &listing.commit), &choice, name))
    }

    /// Whether the disk has room for all that is missing of these files, as far as their sizes are
    /// known.
    fn has_room(&self, repo: &str, files: &[ListedFile]) -> Result<(), StoreError> {
        let missing = |file: &ListedFile| {
            let blob = self.cache.blob(repo, &file.digest?);
            let here = match blob.exists() {
                true => file.bytes?,
                false => taken_bytes(&with_suffix(&blob, ".partial")),
            };
            Some((blob, file.bytes?.saturating_sub(here)))
        };
        let missing: Vec<_> = files.iter().filter_map(missing).collect();
        let need_bytes = missing.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        missing.first().map_or(Ok(()), |(blob, _)| has_room(blob, need_bytes))
    }

    /// One file whose commit, size and digest are known beforehand.
    pub(crate) fn fetch_pinned(
        &self,
        pin: &PinnedFile<'_>,
        name: &str,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        let digest = Digest::parse(pin.sha256);
        let file = ListedFile { path: pin.file.into(), bytes: Some(pin.bytes), digest };
        let file = self.fetch_file(pin.repo, pin.commit, &file, on)?;
        if let Some(digest) = &file.digest {
            self.cache.link(self.disk, pin.repo, pin.commit, &file.path, digest)?;
        }
        let choice = Choice::Gguf(vec![file]);
        Ok(local_model(&self.cache.snapshot(pin.repo, pin.commit), &choice, name))
    }

    /// The repository's files by the hub's API, with sizes and digests.
    pub(crate) fn list(
        &self,
        repo: &str,
        rev: &str,
        on: &mut OnProgress<'_>,
    ) -> Result<Listing, StoreError> {
        let rev = rev.replace('/', "%2F");
        let url = format!("{}/api/models/{repo}/revision/{rev}?blobs=true", self.endpoint);
        let bad = |why: String| StoreError::BadAnswer { url: plain_url(&url), why };
        let (ask, most) = (Ask::default(), self.limits.api_bytes);
        let body = get_small(self.http, self.limits, &url, &ask, most, on)
            .map_err(|error| self.refused(repo, error))?;
        let model: ApiModel = serde_json::from_slice(&body).map_err(|e| bad(e.to_string()))?;
        if !is_commit(&model.sha) {
            return Err(bad(format!("it names the commit {}", shown(&model.sha))));
        }
        let mut files = Vec::new();
        for file in model.siblings {
            if !is_safe_path(&file.rfilename) {
                let name = shown(&file.rfilename);
                return Err(StoreError::UnsafeName { place: repo.to_string(), name });
            }
            files.push(listed(file));
        }
        Ok(Listing { commit: model.sha, files })
    }

    /// Brings one file among the blobs; returns it with its size and digest settled.
    fn fetch_file(
        &self,
        repo: &str,
        commit: &str,
        file: &ListedFile,
        on: &mut OnProgress<'_>,
    ) -> Result<ListedFile, StoreError> {
        let url = format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, encoded(&file.path));
        let downloader = Downloader { http: self.http, disk: self.disk, limits: self.limits };
        let (bytes, digest) = match (file.bytes, file.digest) {
            (Some(bytes), Some(digest)) => (Some(bytes), Some(digest)),
            (bytes, digest) => {
                let probed = downloader.probe(&url, on);
                let probe = probed.map_err(|error| self.refused(repo, error))?;
                (bytes.or(probe.bytes), digest.or(probe.digest))
            }
        };
        let Some(digest) = digest else {
            let why = "the hub states no digest for it".to_string();
            return Err(StoreError::BadAnswer { url: plain_url(&url), why });
        };
        let blob = self.cache.blob(repo, &digest);
        let lock = self.cache.lock(repo, &digest);
        let name = shown(&file.path);
        let remote = Remote { url: &url, name: &name, bytes, digest: Some(digest) };
        let fetched = downloader.fetch(&remote, &blob, &lock, on);
        let bytes = fetched.map_err(|error| self.refused(repo, error))?;
        Ok(ListedFile { path: file.path.clone(), bytes: Some(bytes), digest: Some(digest) })
    }

    /// What a refusal of the hub means for this repository and this log-in.
    fn refused(&self, repo: &str, error: StoreError) -> StoreError {
        let StoreError::Refused { url, status: status @ (401 | 403), .. } = error else {
            return error;
        };
        let page = plain_url(&format!("{}/{repo}", self.endpoint));
        let hint = if self.http.has_token() {
            format!(
                "the token given does not open it, or there is no such model\n\
                 if it is gated: accept its terms at {page} with the token's account"
            )
        } else {
            format!(
                "it is gated or private, or there is no such model; no token was found\n\
                 if it is gated: accept its terms at {page}, then HF_TOKEN=… tokenmill pull {repo}"
            )
        };
        StoreError::Refused { url, status, hint }
    }
}

fn listed(file: ApiFile) -> ListedFile {
    let (lfs_digest, lfs_bytes) = file.lfs.map_or((None, None), |l| (l.sha256, l.size));
    // A file in large-file storage has a SHA-256; its git name is only that of a pointer.
    let digest = match (&lfs_digest, lfs_bytes) {
        (Some(sha256), _) => Digest::parse(sha256),
        (None, Some(_)) => None,
        (None, None) => file.blob_id.as_deref().and_then(Digest::parse),
    };
    ListedFile { path: file.rfilename, bytes: lfs_bytes.or(file.size), digest }
}

/// A path for an address: all but the unreserved characters and `/` escaped.
fn encoded(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
