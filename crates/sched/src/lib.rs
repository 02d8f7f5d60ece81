//! tokenmill-sched
