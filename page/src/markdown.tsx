// Markdown as elements. A text is cut into blocks; blocks that are whole are built once and stay while the rest comes.
// Nothing is ever read as HTML: what looks like it is shown as it stands.
import { signal } from "@preact/signals";
import { Marked, type Token, type Tokens } from "marked";
import { Component, type ComponentChildren, type VNode } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Painted } from "./code";
import { Copy } from "./parts";

type Paint = typeof import("./code").paint;
type Formula = typeof import("./formula").formula;

/** Both come when they are wanted for the first time. */
const paint = signal<Paint | null>(null);
const formula = signal<Formula | null>(null);
let asked = { paint: false, formula: false };

function wantPaint() {
  if (asked.paint) return;
  asked.paint = true;
  void import("./code").then((code) => (paint.value = code.paint));
}

function wantFormula() {
  if (asked.formula) return;
  asked.formula = true;
  void import("./formula").then((found) => (formula.value = found.formula));
}

/** Code on its way is coloured up to here; longer code once it is whole. */
const LIVE_CODE = 4000;

const formulas = (name: string, level: "block" | "inline", rules: RegExp[], start: RegExp) => ({
  name,
  level,
  start: (text: string) => text.match(start)?.index,
  tokenizer(text: string) {
    for (const rule of rules) {
      const found = rule.exec(text);
      if (found?.[1]?.trim()) return { type: name, raw: found[0], text: found[1].trim() };
    }
    return undefined;
  },
});

const reader = new Marked({
  gfm: true,
  extensions: [
    formulas("formulaBlock", "block", [/^\$\$([\s\S]+?)\$\$[ \t]*(?:\n|$)/, /^\\\[([\s\S]+?)\\\][ \t]*(?:\n|$)/], /\$\$|\\\[/),
    formulas("formulaWide", "inline", [/^\$\$([\s\S]+?)\$\$/, /^\\\[([\s\S]+?)\\\]/], /\$\$|\\\[/),
    formulas("formula", "inline", [/^\\\(([\s\S]+?)\\\)/, /^\$(?!\s)((?:\\.|[^\\$\n])+?)(?<!\s)\$(?!\d)/], /\$|\\\(/),
  ],
});

const ENTITIES: Record<string, string> = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#39;": "'", "&nbsp;": "\u00a0" };
const plain = (text: string) => text.replace(/&(?:lt|gt|amp|quot|#39|nbsp);/g, (name) => ENTITIES[name] ?? name);

/** Where a link leads, if it is to a page or a mailbox. */
function target(href: string): string | undefined {
  return /^(https?:\/\/|mailto:)/i.test(href.trim()) ? href.trim() : undefined;
}

function Link({ href, children }: { href: string; children: ComponentChildren }) {
  const to = target(href);
  if (!to) return <span>{children}</span>;
  return (
    <a href={to} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function words(parts: Painted[]): ComponentChildren[] {
  return parts.map((part) => (typeof part === "string" ? part : <span class={part.kind}>{words(part.of)}</span>));
}

function Code({ code, language, whole }: { code: string; language: string; whole: boolean }) {
  wantPaint();
  const show = whole || code.length < LIVE_CODE;
  return (
    <figure class="code">
      <figcaption>
        <span>{language || "text"}</span>
        <Copy text={code} what="code" />
      </figcaption>
      <pre tabIndex={0} aria-label={`Code${language ? `, ${language}` : ""}`}>
        <code>{paint.value && show && language ? words(paint.value(code, language)) : code}</code>
      </pre>
    </figure>
  );
}

function Formula({ tex, wide }: { tex: string; wide: boolean }) {
  const place = useRef<HTMLSpanElement>(null);
  const write = formula.value;
  wantFormula();
  useLayoutEffect(() => {
    if (place.current && write) write(place.current, tex, wide);
  }, [write, tex, wide]);
  return (
    <span class={wide ? "formula wide" : "formula"} ref={place}>
      {write ? null : tex}
    </span>
  );
}

function Table({ token }: { token: Tokens.Table }) {
  const side = (at: number) => (token.align[at] ? `at-${token.align[at]}` : undefined);
  return (
    <div class="table" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {token.header.map((cell, at) => (
              <th class={side(at)}>{inline(cell.tokens)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row) => (
            <tr>
              {row.map((cell, at) => (
                <td class={side(at)}>{inline(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function List({ token, whole }: { token: Tokens.List; whole: boolean }) {
  const items = token.items.map((item) => (
    <li class={item.task ? "task" : undefined}>
      {item.task ? <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? "done" : "open"} /> : null}
      {item.tokens.filter((part) => part.type !== "checkbox").map((part) => block(part, whole))}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function inline(tokens: Token[] | undefined): ComponentChildren[] {
  return (tokens ?? []).map((token) => {
    switch (token.type) {
      case "strong":
        return <strong>{inline(token.tokens)}</strong>;
      case "em":
        return <em>{inline(token.tokens)}</em>;
      case "del":
        return <del>{inline(token.tokens)}</del>;
      case "codespan":
        return <code>{token.text}</code>;
      case "br":
        return <br />;
      case "link":
        return <Link href={token.href}>{inline(token.tokens)}</Link>;
      case "image":
        // (Nothing is loaded from elsewhere.)
        return <Link href={token.href}>{token.text || token.href}</Link>;
      case "formula":
      case "formulaWide":
        return <Formula tex={token.text} wide={token.type === "formulaWide"} />;
      case "text":
        return "tokens" in token && token.tokens ? inline(token.tokens) : plain(token.text);
      case "escape":
        return token.text;
      default:
        return token.raw;
    }
  });
}

const HEADINGS = ["h3", "h3", "h4", "h5", "h6", "h6"] as const;

/** A block; `whole`: nothing of it is still to come. */
function block(token: Token, whole: boolean): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      const Heading = HEADINGS[token.depth - 1] ?? "h6";
      return <Heading>{inline(token.tokens)}</Heading>;
    }
    case "paragraph":
      return <p>{inline(token.tokens)}</p>;
    case "code":
      return <Code code={token.text} language={(token.lang ?? "").split(/[\s,{]/)[0]?.toLowerCase() ?? ""} whole={whole} />;
    case "blockquote":
      return <blockquote>{token.tokens?.map((part) => block(part, whole))}</blockquote>;
    case "list":
      return <List token={token as Tokens.List} whole={whole} />;
    case "table":
      return <Table token={token as Tokens.Table} />;
    case "hr":
      return <hr />;
    case "formulaBlock":
      return <Formula tex={token.text} wide />;
    case "html":
      return <p>{token.raw}</p>;
    case "text":
      return "tokens" in token && token.tokens ? inline(token.tokens) : plain(token.text);
    default:
      return inline([token]);
  }
}

class Block extends Component<{ token: Token; whole: boolean }> {
  override shouldComponentUpdate(next: { token: Token; whole: boolean }) {
    return next.token.raw !== this.props.token.raw || next.whole !== this.props.whole;
  }
  override render() {
    return block(this.props.token, this.props.whole);
  }
}

/** A text of Markdown that may grow at its end. */
export class Markdown extends Component<{ text: string; whole: boolean }> {
  private settled: VNode[] = [];
  private before = "";

  override render({ text, whole }: { text: string; whole: boolean }) {
    const source = text.replace(/\r\n?/g, "\n");
    if (!source.startsWith(this.before)) {
      this.settled = [];
      this.before = "";
    }
    const tokens = reader.lexer(source.slice(this.before.length)) as Token[];
    // The last block may go on, whatever white space stands behind it.
    let last = tokens.length - 1;
    while (last > 0 && tokens[last]?.type === "space") last -= 1;
    const open = whole ? tokens.length : Math.max(0, last);
    for (const token of tokens.slice(0, open)) {
      this.settled.push(<Block key={this.settled.length} token={token} whole />);
      this.before += token.raw;
    }
    const rest = tokens.slice(open).map((token, at) => <Block key={this.settled.length + at} token={token} whole={false} />);
    return (
      <div class="markdown">
        {this.settled}
        {rest}
      </div>
    );
  }
}

/** Reasoning, folded unless it is all that there is so far. */
export function Reasoning({ text, running }: { text: string; running: boolean }) {
  const [open, setOpen] = useState<boolean | null>(null);
  const shown = open ?? running;
  return (
    <details class="reasoning" open={shown}>
      <summary
        onClick={(event) => {
          event.preventDefault();
          setOpen(!shown);
        }}
      >
        {running ? "Thinking…" : "Reasoning"}
      </summary>
      <Markdown text={text} whole={!running} />
    </details>
  );
}
