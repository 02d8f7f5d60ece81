//! What clients send over HTTP.
