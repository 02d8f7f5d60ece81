// Conversations as trees of messages: an edit or another answer is a sibling, and nothing is lost.
import type { Conversation, Pane, Settings, Turn } from "./types";

/** A name that nothing else has. (`randomUUID` is not there over plain HTTP from other machines.) */
export function fresh(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const blank = (): Settings => ({ system: "", schema: "", tools: "", toolChoice: "", sampling: {} });

export function conversation(panes: Pane[], settings: Settings): Conversation {
  const now = Date.now();
  return { id: fresh(), title: "", created: now, changed: now, turns: {}, panes, settings };
}

/** Messages from the first one to that. */
export function path(of: Conversation, leaf: string | null): Turn[] {
  const turns: Turn[] = [];
  for (let at = leaf; at !== null; ) {
    const turn: Turn | undefined = of.turns[at];
    if (!turn) break;
    turns.push(turn);
    at = turn.parent;
  }
  return turns.reverse();
}

/** Messages that stand in the same place, oldest first. */
export function siblings(of: Conversation, turn: Turn): Turn[] {
  return Object.values(of.turns)
    .filter((other) => other.parent === turn.parent)
    .sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
}

/** The end of what was said last below a message. */
export function newest(of: Conversation, id: string): string {
  const below = Object.values(of.turns).filter((turn) => turn.parent === id);
  const last = below.sort((a, b) => a.at - b.at).at(-1);
  return last ? newest(of, last.id) : id;
}

/** Adds a message; of its place it is the newest. */
export function add(of: Conversation, turn: Omit<Turn, "id" | "at">): Turn {
  const after = Object.values(of.turns).filter((other) => other.parent === turn.parent);
  const at = Math.max(Date.now(), ...after.map((other) => other.at + 1));
  const whole = { ...turn, id: fresh(), at };
  of.turns[whole.id] = whole;
  of.changed = Date.now();
  return whole;
}

/** Calls at the end of a path that have no result yet. */
export function openCalls(turns: Turn[]) {
  const results = new Set<string>();
  for (const turn of turns.toReversed()) {
    if (turn.role === "tool" && turn.call) results.add(turn.call.id);
    else return (turn.calls ?? []).filter((call) => !results.has(call.id));
  }
  return [];
}

/** What a conversation is called: what it begins with. */
export function titleOf(of: Conversation): string {
  if (of.title) return of.title;
  const first = Object.values(of.turns).find((turn) => turn.parent === null);
  const line = (first?.text || first?.files?.[0]?.name || first?.images?.[0]?.name || "New chat").trim().split("\n")[0] ?? "";
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/** Whether every word stands somewhere in it. */
export function holds(of: Conversation, words: string): boolean {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return true;
  const text = [of.title, of.settings.system, ...Object.values(of.turns).map((turn) => turn.text)].join("\n").toLowerCase();
  return wanted.every((word) => text.includes(word));
}

/** What is wrong with a conversation from a file; nothing is taken on trust. */
export function read(value: unknown): Conversation {
  const from = value as Conversation;
  const isText = (x: unknown): x is string => typeof x === "string";
  const wrong = (what: string) => new Error(`the file has no conversation of this page: ${what}`);
  if (!from || typeof from !== "object" || !isText(from.id)) throw wrong("id");
  if (!from.turns || typeof from.turns !== "object") throw wrong("turns");
  const turns: Record<string, Turn> = {};
  for (const [id, turn] of Object.entries(from.turns)) {
    const fits = turn && turn.id === id && isText(turn.text) && ["user", "assistant", "tool"].includes(turn.role);
    if (!fits || !(turn.parent === null || from.turns[turn.parent])) throw wrong(`turn ${id}`);
    const images = turn.images?.filter((image) => isText(image?.name) && isText(image.url) && image.url.startsWith("data:image/"));
    turns[id] = { ...turn, images: images?.length ? images : undefined, at: Number(turn.at) || 0 };
  }
  for (const turn of Object.values(turns)) {
    const seen = new Set<string>();
    for (let at: string | null = turn.id; at !== null; at = turns[at]?.parent ?? null) {
      if (seen.has(at)) throw wrong("turns in a circle");
      seen.add(at);
    }
  }
  const leaves = (from.panes ?? []).map((pane) => ({
    model: isText(pane?.model) ? pane.model : "",
    leaf: isText(pane?.leaf) && turns[pane.leaf] ? pane.leaf : null,
  }));
  const given = (from.settings ?? {}) as Partial<Settings>;
  const settings = blank();
  for (const name of ["system", "schema", "tools", "toolChoice"] as const) if (isText(given[name])) settings[name] = given[name];
  for (const [name, text] of Object.entries(given.sampling ?? {})) if (isText(text)) settings.sampling[name] = text;
  return {
    id: from.id,
    title: isText(from.title) ? from.title : "",
    created: Number(from.created) || Date.now(),
    changed: Number(from.changed) || Date.now(),
    turns,
    panes: leaves.length ? leaves.slice(0, 2) : [{ model: "", leaf: null }],
    settings,
  };
}
