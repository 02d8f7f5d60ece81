//! Templates that mean harm: whatever one does, it ends by itself or is stopped, within little
//! memory. What each took is printed.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::json;
use tokenmill_text::{ChatTemplate, RenderOptions, TemplateError, TemplateTokens};

/// Counts the bytes that are held, and the most there were.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a template may take beside its source, bytes.
const MOST_BYTES: usize = 64 << 20;

/// Expressions over `x`, a text of 4 MB, `l`, a list of 90 000 numbers, and `m`, the messages; each is
/// computed 99 999 times.
const WORK: &[&str] = &[
    "x ~ x",
    "x * 3",
    "x[::-1]",
    "x[1:]",
    "x[::2]",
    "x == x ~ ''",
    "x < x ~ 'a'",
    "'zz' in x",
    "x in l",
    "x | length",
    "x | upper",
    "x | lower",
    "x | title",
    "x | capitalize",
    "x | trim",
    "x | reverse",
    "x | wordcount",
    "x | string",
    "x | tojson",
    "x | tojson(indent=4)",
    "x | escape",
    "x | safe",
    "x | indent(200000000)",
    "x | center(4000000000)",
    "x | replace('a', 'bb')",
    "x | replace('', 'b')",
    "x | first",
    "x | last",
    "x | list | length",
    "x | batch(1) | list",
    "x | slice(3) | list",
    "x.split('a') | length",
    "x.rsplit('a') | length",
    "x.strip('b')",
    "x.lstrip('a')",
    "x.removeprefix(x)",
    "x.count('aa')",
    "x.find('b')",
    "x.rfind('b')",
    "x.index('a')",
    "x.startswith(x)",
    "x.endswith(x)",
    "x.zfill(900000000)",
    "x.ljust(900000000)",
    "x.expandtabs(900000)",
    "x.encode()",
    "'%s%s%s' % (x, x, x)",
    "'%999999999d' | format(7)",
    "'{:>999999999}'.format(7)",
    "'{0}{0}{0}'.format(x)",
    "x.join(l | map('string'))",
    "l + l",
    "l * 1000",
    "l[::-1]",
    "l | sort",
    "l | sort(reverse=true)",
    "l | unique | list",
    "l | sum",
    "l | max",
    "l | join(x)",
    "l | map('string') | list",
    "l | select('odd') | list",
    "l | reject('odd') | list",
    "l | groupby('a')",
    "l | batch(1) | list",
    "l | reverse | list",
    "l | random",
    "l == l + [1]",
    "l | tojson",
    "l | string",
    "l | pprint",
    "dict(a=x, b=l) | tojson",
    "m | tojson",
    "m + m | list",
    "m | map(attribute='content') | join(x)",
    "range(99999999) | list",
    "range(99999) | list | tojson",
    "namespace(a=x, b=[x, x])",
    "x.translate({})",
    "x | int",
    "x | float",
    "10 ** 100000",
    "(l | length) ** 9999",
    "1 // 0",
    "x.splitlines(true)",
    "x.casefold().swapcase()",
    "strftime_now('%Y' * 99999)",
    "strftime_now(x)",
    "x | urlencode",
    "x | striptags",
    "x | truncate(3999999)",
    "x | wordwrap(1)",
    "x | xmlattr",
    "x | filesizeformat",
    "l | tojson(separators=['x' * 100000, 'y'])",
    "{'a': 1, 'b': 2} | tojson(separators=['y', x])",
    "l | map(attribute=x) | list",
    "('\\x01' * 12000000) | tojson",
    "('\"' * 12000000) | escape",
    "('\\n' * 12000000) | indent",
    "(m[0].content[:1] ~ 'a') * 12000000",
    "['\\x01' * 9000000] | string",
    "('\u{390}' * 7000000) | upper",
    "('\u{390}' * 7000000).upper()",
    "('\u{390}' * 7000000) | title",
    "((m[0].content[:1] ~ 'a') * 700000)[::-1]",
    "((m[0].content[:1] ~ 'a') * 100000) | list",
    "((m[0].content * 1000000) | replace('', 'a'))",
];

/// Expressions over `a` and `b`, lists of 2^40 places each that share all they hold.
const SHARED: &[&str] = &[
    "a == b",
    "a != b",
    "a < b",
    "a in [b]",
    "[a, b] | sort",
    "[a, b] | unique | list",
    "[a, b] | min",
    "[a, b] | max",
    "[[a], [b]] | groupby(0)",
    "{'k': a} == {'k': b}",
    "{'k': a, 'l': b} | dictsort(by='value')",
    "[a].index(b)",
    "[a].count(b)",
    "a is eq b",
    "a is in [b]",
    "a is sameas b",
    "a | string",
    "a | tojson",
    "[a, b] | join",
    "[a, b] | map('string') | list",
    "'%s' % [a]",
];

fn render(source: &str) -> Result<usize, TemplateError> {
    let named = |name: &str| name.to_owned();
    let tokens =
        TemplateTokens { bos: named("<s>"), eos: named("</s>"), ..TemplateTokens::default() };
    let template = ChatTemplate::new(source, tokens)?;
    let messages = [json!({ "role": "user", "content": "hello" })];
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    template.render(&messages, &options).map(|prompt| prompt.text().len())
}

#[test]
fn no_work_goes_on_for_ever_or_takes_all_memory() {
    let mut worst = (0.0f64, 0usize);
    for work in WORK {
        let source = format!(
            "{{% set x = 'a' * 4000000 %}}{{% set l = range(90000) | list %}}{{% set m = messages %}}\
             {{% for i in range(99999) %}}{{% set y = {work} %}}{{% endfor %}}"
        );
        let (start, held) = (Instant::now(), HELD.load(Ordering::Relaxed));
        MOST.store(held, Ordering::Relaxed);
        let ended = render(&source);
        let taken = MOST.load(Ordering::Relaxed).saturating_sub(held);
        let seconds = start.elapsed().as_secs_f64();
        let told = match &ended {
            Ok(bytes) => format!("{bytes} bytes"),
            Err(error) => error.to_string(),
        };
        println!("{seconds:6.3} s {:4} MiB  {work}: {told}", taken >> 20);
        assert!(taken <= MOST_BYTES, "{work} took {taken} bytes");
        assert!(told.len() < 1000, "{work}: {} bytes of error", told.len());
        worst = (worst.0.max(seconds), worst.1.max(taken));
    }
    for work in SHARED {
        let source = format!(
            "{{% set ns = namespace(a=[1], b=[1]) %}}{{% for i in range(40) %}}\
             {{% set ns.a = [ns.a, ns.a] %}}{{% set ns.b = [ns.b, ns.b] %}}{{% endfor %}}\
             {{% set a = ns.a %}}{{% set b = ns.b %}}{{% set y = {work} %}}"
        );
        let ended = render(&source);
        assert_eq!(ended, Err(TemplateError::OutOfFuel), "{work}");
    }
    println!("{} templates; at most {:.3} s and {} MiB", WORK.len(), worst.0, worst.1 >> 20);
}
