// Asking for answers, and answers as they come. A running answer changes its message in place and says so once a
// frame, to who shows that message and to nobody else.
import { type Signal, signal } from "@preact/signals";
import { ask, events, Refused, wordsOf } from "./api";
import { changed, latest, readModels, save } from "./state";
import { add, path } from "./tree";
import type { Call, Conversation, Miss, Pane, Picture, Settings, Turn } from "./types";

/** An answer that is being written. */
export interface Run {
  version: Signal<number>;
  stop: AbortController;
}

export const runs = signal<Record<string, Run>>({});

/** Least time between two savings of an answer on its way. */
const SAVE_MS = 2000;

/** Members of a request that hold numbers, as the panel has them. */
export const SAMPLING: { name: string; label: string; hint: string; whole?: boolean }[] = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", hint: "likeliest tokens that have this share together" },
  { name: "top_k", label: "Top k", hint: "so many of the likeliest tokens", whole: true },
  { name: "min_p", label: "Min p", hint: "at least this share of the likeliest" },
  { name: "repetition_penalty", label: "Repetition penalty", hint: "above 1: less of what was said" },
  { name: "presence_penalty", label: "Presence penalty", hint: "-2 to 2" },
  { name: "frequency_penalty", label: "Frequency penalty", hint: "-2 to 2" },
  { name: "max_completion_tokens", label: "Most tokens", hint: "of an answer", whole: true },
  { name: "thinking_token_budget", label: "Thinking budget", hint: "tokens of reasoning; 0: none", whole: true },
  { name: "seed", label: "Seed", hint: "the same seed gives the same bytes", whole: true },
];

/** What is wrong with the text of a field; empty: nothing. */
export function wrongNumber(text: string, whole?: boolean): string {
  if (!text.trim()) return "";
  const value = Number(text);
  if (!Number.isFinite(value)) return "not a number";
  return whole && !Number.isInteger(value) ? "not a whole number" : "";
}

/** What is wrong with a schema, or with a list of tools; empty: nothing. */
export function wrongJson(text: string, list: boolean): string {
  if (!text.trim()) return "";
  try {
    const value = JSON.parse(text);
    if (list && !Array.isArray(value)) return "a list of tools is wanted: [ … ]";
    if (!list && (typeof value !== "object" || value === null || Array.isArray(value))) return "a JSON Schema is an object: { … }";
    return "";
  } catch (error) {
    return wordsOf(error);
  }
}

/** Tools as chat completions have them; a bare function is one too. */
function tools(text: string): unknown[] {
  const list = JSON.parse(text) as Record<string, unknown>[];
  return list.map((one) => (one.function ? one : { type: "function", function: one }));
}

function content(turn: Turn): string {
  const files = (turn.files ?? []).map((file) => `File ${file.name}:\n\`\`\`\n${file.text}\n\`\`\``);
  return [...files, turn.text].filter(Boolean).join("\n\n");
}

/** Images, then what is said of them. */
function parts(turn: Turn, images: Picture[]): unknown[] {
  const said = content(turn);
  const shown = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return said ? [...shown, { type: "text", text: said }] : shown;
}

function message(turn: Turn): Record<string, unknown> {
  if (turn.role === "user") return { role: "user", content: turn.images?.length ? parts(turn, turn.images) : content(turn) };
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.call?.id, content: turn.text };
  const said: Record<string, unknown> = { role: "assistant", content: turn.text };
  if (turn.calls?.length) {
    said.tool_calls = turn.calls.map(({ id, name, args }) => ({ id, type: "function", function: { name, arguments: args || "{}" } }));
    if (turn.reasoning) said.reasoning_content = turn.reasoning;
  }
  return said;
}

/** The request that asks a model to go on behind these messages. */
export function request(model: string, turns: Turn[], settings: Settings): Record<string, unknown> {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body: Record<string, unknown> = {
    model,
    messages: [...system, ...turns.map(message)],
    stream: true,
    stream_options: { include_usage: true },
    diagnostics: true,
  };
  for (const { name, whole } of SAMPLING) {
    const text = settings.sampling[name] ?? "";
    if (text.trim() && !wrongNumber(text, whole)) body[name] = Number(text);
  }
  if (settings.schema.trim()) {
    const schema = JSON.parse(settings.schema);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  if (settings.tools.trim()) {
    body.tools = tools(settings.tools);
    if (settings.toolChoice) body.tool_choice = settings.toolChoice;
  }
  return body;
}

/** What one event adds to an answer. */
function take(turn: Turn, event: Record<string, any>): boolean {
  if (event.error) throw new Refused(0, event.error.message ?? "the answer failed", event.error.code ?? "");
  if (event.warnings) turn.warnings = event.warnings;
  const choice = event.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) turn.reasoning = (turn.reasoning ?? "") + delta.reasoning_content;
  if (delta.content) turn.text += delta.content;
  for (const part of delta.tool_calls ?? []) {
    const calls: Call[] = (turn.calls ??= []);
    const call = (calls[part.index] ??= { id: "", name: "", args: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name = part.function.name;
    call.args += part.function?.arguments ?? "";
  }
  if (choice?.finish_reason) turn.end = choice.finish_reason;
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
}

/** Asks for an answer behind a pane's last message, and shows it in the pane as it comes. */
export async function answer(of: Conversation, pane: Pane): Promise<void> {
  const turns = path(of, pane.leaf);
  const turn = add(of, { parent: pane.leaf, role: "assistant", text: "", model: pane.model });
  pane.leaf = turn.id;
  const run: Run = { version: signal(0), stop: new AbortController() };
  runs.value = { ...runs.value, [turn.id]: run };
  changed(of);
  let frame = 0;
  const show = () => {
    frame = 0;
    run.version.value += 1;
  };
  const saving = setInterval(() => void save(latest(of.id) ?? of), SAVE_MS);
  try {
    await write(of, turn, request(pane.model, turns, of.settings), run, () => (frame ||= requestAnimationFrame(show)));
  } catch (error) {
    if (run.stop.signal.aborted) turn.end = "stopped";
    else {
      turn.end = "error";
      turn.error = wordsOf(error);
    }
  } finally {
    clearInterval(saving);
    cancelAnimationFrame(frame);
    const { [turn.id]: _, ...others } = runs.value;
    runs.value = others;
    // (Who deleted the chat meanwhile does not get it back.)
    const now = latest(of.id);
    if (now) changed({ ...now, changed: Date.now() });
    void readModels().catch(() => undefined);
  }
}

async function write(of: Conversation, turn: Turn, body: Record<string, unknown>, run: Run, showSoon: () => void) {
  const begin = performance.now();
  let first = 0;
  let last = 0;
  let miss: Miss | null | undefined;
  const response = await ask("/v1/chat/completions", { body, signal: run.stop.signal });
  for await (const event of events(response)) {
    if (take(turn, event)) {
      last = performance.now();
      first ||= last;
    }
    if (event.diagnostics) miss = event.diagnostics.cache_miss_reason;
    if (event.model) turn.model = event.model;
    const usage = event.usage;
    if (usage) {
      turn.figures = {
        prompt: usage.prompt_tokens,
        cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
        tokens: usage.completion_tokens,
        reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
        first_s: ((first || performance.now()) - begin) / 1000,
        rest_s: Math.max(0, last - first) / 1000,
        miss,
      };
    }
    showSoon();
  }
  of.changed = Date.now();
}

/** Says something in every pane, and asks each pane's model for its answer. */
export function say(of: Conversation, text: string, files: Turn["files"], images: Turn["images"]) {
  of.changed = Date.now();
  const said = new Map<string | null, string>();
  for (const pane of of.panes) {
    const before = said.get(pane.leaf);
    const leaf = before ?? add(of, { parent: pane.leaf, role: "user", text, files: files?.length ? files : undefined, images: images?.length ? images : undefined }).id;
    if (!before) said.set(pane.leaf, leaf);
    pane.leaf = leaf;
  }
  changed(of, false);
  for (const pane of of.panes) void answer(of, pane);
}

/** Another answer in the place of one, of this model or of another. */
export function again(of: Conversation, pane: Pane, turn: Turn, model = pane.model) {
  pane.leaf = turn.parent;
  pane.model = model;
  void answer(of, pane);
}

/** The message by other words: a branch beside it. */
export function edit(of: Conversation, pane: Pane, turn: Turn, text: string) {
  pane.leaf = add(of, { parent: turn.parent, role: "user", text, files: turn.files, images: turn.images }).id;
  void answer(of, pane);
}

/** Results of calls, by the call's id, and the answer to them. */
export function results(of: Conversation, pane: Pane, calls: Call[], texts: Record<string, string>) {
  for (const call of calls) {
    const { id, name } = call;
    pane.leaf = add(of, { parent: pane.leaf, role: "tool", text: texts[id] ?? "", call: { id, name } }).id;
  }
  void answer(of, pane);
}

export const stopAll = (ids: Iterable<string>) => {
  for (const id of ids) runs.value[id]?.stop.abort();
};
