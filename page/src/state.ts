// What all parts of the page share: conversations, models, where one is, how it looks.
import { computed, signal } from "@preact/signals";
import { json } from "./api";
import * as archive from "./archive";
import { blank, conversation, read } from "./tree";
import type { Conversation, Model, Settings } from "./types";

export const conversations = signal<Conversation[]>([]);
/** History could not be read or kept, and why. */
export const trouble = signal("");
export const models = signal<Model[]>([]);
/** The list of models has come once. */
export const modelsKnown = signal(false);
export const place = signal(location.hash);
/** A conversation that nobody has said anything in yet. */
export const draft = signal<Conversation>(newDraft());
/** The last thing done that can be undone. */
export const undo = signal<{ words: string; act: () => void } | null>(null);

addEventListener("hashchange", () => (place.value = location.hash));

export const tab = computed(() => (place.value.startsWith("#/live") ? "live" : place.value.startsWith("#/models") ? "models" : "chat"));

export const current = computed<Conversation>(() => {
  const id = /^#\/chat\/(\w+)$/.exec(place.value)?.[1];
  return conversations.value.find((one) => one.id === id) ?? draft.value;
});

function lastSettings(): Settings {
  try {
    return { ...blank(), ...JSON.parse(localStorage.getItem("tokenmill.settings") ?? "{}") };
  } catch {
    return blank();
  }
}

function newDraft(): Conversation {
  return conversation([{ model: localStorage.getItem("tokenmill.model") ?? "", leaf: null }], lastSettings());
}

export function newChat() {
  draft.value = newDraft();
  location.hash = "#/";
}

/** Says that a conversation has changed, and keeps it. */
export function changed(one: Conversation, kept = true) {
  if (one === draft.value || one.id === draft.value.id) {
    const begun = Object.keys(one.turns).length > 0;
    if (!begun) {
      draft.value = { ...one };
      return;
    }
    draft.value = newDraft();
    conversations.value = [{ ...one }, ...conversations.value];
    if (tab.value === "chat") history.replaceState(null, "", `#/chat/${one.id}`);
    place.value = location.hash;
  } else {
    conversations.value = conversations.value.map((other) => (other.id === one.id ? { ...one } : other));
  }
  if (kept) void save(one);
}

export async function save(one: Conversation) {
  try {
    await archive.keep(one);
    trouble.value = "";
  } catch (error) {
    trouble.value = `this browser does not keep the history: ${error}`;
  }
}

/** The conversation as it is now. */
export const latest = (id: string) => conversations.value.find((one) => one.id === id) ?? (draft.value.id === id ? draft.value : undefined);

export async function readHistory() {
  try {
    const all = await archive.all();
    conversations.value = all.sort((a, b) => b.changed - a.changed);
  } catch (error) {
    trouble.value = `the history cannot be read: ${error}`;
  }
}

export async function remove(one: Conversation) {
  conversations.value = conversations.value.filter((other) => other.id !== one.id);
  if (place.value.includes(one.id)) newChat();
  await archive.forget(one.id).catch(() => undefined);
  const act = () => {
    conversations.value = [one, ...conversations.value].sort((a, b) => b.changed - a.changed);
    void save(one);
  };
  undo.value = { words: "Chat deleted", act };
}

/** Takes conversations from a file; those that are here are replaced. */
export async function take(text: string): Promise<number> {
  const found = JSON.parse(text);
  const list = (Array.isArray(found?.conversations) ? found.conversations : [found]).map(read) as Conversation[];
  const ids = new Set(list.map((one) => one.id));
  conversations.value = [...conversations.value.filter((one) => !ids.has(one.id)), ...list].sort((a, b) => b.changed - a.changed);
  for (const one of list) await save(one);
  return list.length;
}

export function hand(name: string, list: Conversation[]) {
  const blob = new Blob([JSON.stringify({ format: "tokenmill-chats", version: 1, conversations: list }, null, 1)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function readModels() {
  const { data } = await json<{ data: Model[] }>("/v1/models");
  models.value = data;
  modelsKnown.value = true;
}

/** Models that write texts, as far as is known; those in memory first. */
export const writers = computed(() => {
  const writes = (model: Model) => model.status.value !== "loaded" || model.defaults !== undefined;
  const rank = (model: Model) => (model.status.value === "loaded" ? 0 : 1);
  return models.value.filter(writes).sort((a, b) => rank(a) - rank(b));
});

/** Whether a model is known to see images. */
export const sees = (id: string) => models.value.some((model) => model.id === id && model.input_modalities?.includes("image"));

/** The last part of a model's name, where no other model has it. */
export function shortName(id: string): string {
  const last = (name: string) => name.split("/").at(-1) ?? name;
  const alike = models.value.filter((model) => last(model.id) === last(id));
  return alike.length > 1 ? id : last(id);
}

export type Theme = "system" | "light" | "dark";
export const theme = signal<Theme>((localStorage.getItem("tokenmill.theme") as Theme | null) ?? "system");
theme.subscribe((value) => {
  localStorage.setItem("tokenmill.theme", value);
  if (value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
});
