// One message: what it says, what can be done with it, what it took.
import { useState } from "preact/hooks";
import { again, edit, results, runs } from "./answers";
import { Again, Left, Pencil, Right, Tool } from "./icons";
import { Markdown, Reasoning } from "./markdown";
import { Area, Copy, Icon } from "./parts";
import { changed } from "./state";
import { newest, siblings } from "./tree";
import type { Call, Conversation, Figures, Miss, Pane, Turn } from "./types";
import { bytes, count, rate, seconds } from "./words";

interface Shown {
  of: Conversation;
  pane: Pane;
  turn: Turn;
}

/** Why a prompt was computed again, in a sentence. */
export function missWords(miss: Miss | null | undefined): string {
  if (!miss) return "";
  const where = miss.token_offset === undefined ? "" : ` at token ${count(miss.token_offset)}`;
  const words: Record<string, string> = {
    previous_message_not_found: "no earlier prompt begins like this one",
    system_changed: `the system prompt differs from the cached one${where}`,
    messages_changed: `the messages differ from the cached ones${where}`,
    tools_changed: `the tools differ from the cached ones${where}`,
    model_changed: "another model answered before",
  };
  return words[miss.type] ?? miss.type.replaceAll("_", " ");
}

const ENDS: Record<string, string> = {
  length: "cut at the limit of tokens",
  stopped: "stopped",
  content_filter: "filtered",
};

function FiguresLine({ figures, end }: { figures: Figures | undefined; end: string | undefined }) {
  const parts: string[] = [];
  if (figures) {
    parts.push(`${count(figures.tokens)} tokens`);
    if (figures.tokens > 1 && figures.rest_s > 0) parts.push(`${rate((figures.tokens - 1) / figures.rest_s)} tok/s`);
    parts.push(`first after ${seconds(figures.first_s)}`);
    parts.push(`prompt ${count(figures.prompt)}${figures.cached ? `, ${count(figures.cached)} cached` : ""}`);
  }
  const said = end && ENDS[end];
  if (said) parts.push(said);
  const miss = missWords(figures?.miss);
  return (
    <span class="figures" title={miss ? `Prompt computed: ${miss}` : undefined}>
      {parts.join(" · ")}
    </span>
  );
}

function Versions({ of, pane, turn }: Shown) {
  const all = siblings(of, turn);
  if (all.length < 2) return null;
  const at = all.findIndex((other) => other.id === turn.id);
  const go = (to: number) => {
    const other = all[to];
    if (!other) return;
    pane.leaf = newest(of, other.id);
    changed(of);
  };
  return (
    <span class="versions">
      <Icon label="Previous version" disabled={at === 0} onClick={() => go(at - 1)}>
        <Left />
      </Icon>
      <span aria-label={`Version ${at + 1} of ${all.length}`}>
        {at + 1}/{all.length}
      </span>
      <Icon label="Next version" disabled={at === all.length - 1} onClick={() => go(at + 1)}>
        <Right />
      </Icon>
    </span>
  );
}

function Asked(shown: Shown) {
  const { of, pane, turn } = shown;
  const [text, setText] = useState<string | null>(null);
  if (text !== null) {
    const send = () => {
      setText(null);
      edit(of, pane, turn, text);
    };
    return (
      <article class="turn user editing">
        <Area
          value={text}
          onInput={setText}
          aria-label="Edit the message"
          autofocus
          onKeyDown={(event) => {
            if (event.key === "Escape") setText(null);
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              send();
            }
          }}
        />
        <div class="row end">
          <button type="button" onClick={() => setText(null)}>
            Cancel
          </button>
          <button type="button" class="main" onClick={send}>
            Send
          </button>
        </div>
      </article>
    );
  }
  return (
    <article class="turn user" aria-label="You">
      {turn.files?.map((file) => (
        <details class="file">
          <summary>
            {file.name} <span class="quiet">{bytes(new Blob([file.text]).size)}</span>
          </summary>
          <pre tabIndex={0}>{file.text}</pre>
        </details>
      ))}
      {turn.images?.length ? (
        <div class="pictures">
          {turn.images.map((image) => (
            <img src={image.url} alt={image.name} />
          ))}
        </div>
      ) : null}
      {turn.text ? <div class="said">{turn.text}</div> : null}
      <div class="acts">
        <Versions {...shown} />
        <Icon label="Edit" onClick={() => setText(turn.text)}>
          <Pencil />
        </Icon>
        <Copy text={turn.text} what="message" />
      </div>
    </article>
  );
}

function pretty(args: string): string {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}

/** Calls of an answer; where they wait for results, fields for these. */
function Calls({ of, pane, calls, open }: { of: Conversation; pane: Pane; calls: Call[]; open: boolean }) {
  const [texts, setTexts] = useState<Record<string, string>>({});
  return (
    <form
      class="calls"
      onSubmit={(event) => {
        event.preventDefault();
        results(of, pane, calls, texts);
      }}
    >
      {calls.map((call) => (
        <div class="call" key={call.id}>
          <p>
            <Tool /> <strong>{call.name}</strong>
          </p>
          <pre tabIndex={0} aria-label={`Arguments of ${call.name}`}>
            {pretty(call.args)}
          </pre>
          {open ? (
            <label class="field">
              <span>Result of {call.name}</span>
              <Area class="code" value={texts[call.id] ?? ""} onInput={(text) => setTexts({ ...texts, [call.id]: text })} placeholder="What the tool answers" />
            </label>
          ) : null}
        </div>
      ))}
      {open ? (
        <div class="row end">
          <button type="submit" class="main">
            Send {calls.length > 1 ? "results" : "result"}
          </button>
        </div>
      ) : null}
    </form>
  );
}

function Answered(shown: Shown) {
  const { of, pane, turn } = shown;
  const run = runs.value[turn.id];
  void run?.version.value; // (this answer alone is drawn again while it comes)
  const running = Boolean(run);
  const isLast = pane.leaf === turn.id;
  const silent = running && !turn.text && !turn.reasoning && !turn.calls;
  return (
    <article class="turn assistant" aria-label={turn.model ?? "Answer"} aria-busy={running}>
      {turn.reasoning ? <Reasoning text={turn.reasoning} running={running && !turn.text && !turn.calls} /> : null}
      {silent ? <p class="waiting" aria-label="Waiting for the first token" role="status" /> : null}
      {turn.text ? <Markdown text={turn.text} whole={!running} /> : null}
      {turn.calls?.length ? <Calls of={of} pane={pane} calls={turn.calls} open={!running && isLast} /> : null}
      {turn.error ? (
        <p class="bad" role="alert">
          {turn.error}
        </p>
      ) : null}
      {turn.warnings?.length ? (
        <ul class="warnings">
          {turn.warnings.map((words) => (
            <li>{words}</li>
          ))}
        </ul>
      ) : null}
      {running ? null : (
        <div class="acts">
          <Versions {...shown} />
          <Copy text={turn.text} what="answer" />
          <Icon label="Regenerate" onClick={() => again(of, pane, turn)}>
            <Again />
          </Icon>
          <FiguresLine figures={turn.figures} end={turn.end} />
        </div>
      )}
    </article>
  );
}

export function Message(shown: Shown) {
  const { turn } = shown;
  if (turn.role === "user") return <Asked {...shown} />;
  if (turn.role === "assistant") return <Answered {...shown} />;
  return (
    <article class="turn tool" aria-label={`Result of ${turn.call?.name ?? "a tool"}`}>
      <p class="quiet">
        <Tool /> {turn.call?.name}
      </p>
      <pre tabIndex={0}>{turn.text || "(nothing)"}</pre>
    </article>
  );
}
