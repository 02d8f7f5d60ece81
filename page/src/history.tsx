// The chats of this browser: searched, renamed, deleted, taken from files and handed out.
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { wordsOf } from "./api";
import { Bin, Down, Pencil, Plus, Search, Up } from "./icons";
import { Focused, Icon } from "./parts";
import { changed, conversations, current, hand, newChat, remove, take, trouble } from "./state";
import { holds, titleOf } from "./tree";
import type { Conversation } from "./types";
import { ago } from "./words";

/** On narrow screens the list is shown when it is asked for. */
export const historyShown = signal(false);
/** Counts up when the field of the search is to have the keyboard. */
export const searchWanted = signal(0);

/** Rows of the list; a search finds the others. */
const MOST = 200;

function Row({ one }: { one: Conversation }) {
  const [name, setName] = useState<string | null>(null);
  const here = current.value.id === one.id;
  const rename = () => {
    if (name !== null) changed({ ...one, title: name.trim() });
    setName(null);
  };
  if (name !== null) {
    return (
      <li>
        <Focused
          class="rename"
          aria-label="Name of this chat"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
          onBlur={rename}
          onKeyDown={(event) => {
            if (event.key === "Enter") rename();
            if (event.key === "Escape") setName(null);
          }}
        />
      </li>
    );
  }
  const title = titleOf(one);
  return (
    <li class={here ? "here" : undefined}>
      <a href={`#/chat/${one.id}`} aria-current={here ? "page" : undefined} onClick={() => (historyShown.value = false)}>
        <span class="title">{title}</span>
        <time>{ago(one.changed)}</time>
      </a>
      <span class="acts">
        <Icon label={`Rename ${title}`} onClick={() => setName(title)}>
          <Pencil />
        </Icon>
        <Icon label={`Export ${title}`} onClick={() => hand("chat.json", [one])}>
          <Down />
        </Icon>
        <Icon label={`Delete ${title}`} onClick={() => void remove(one)}>
          <Bin />
        </Icon>
      </span>
    </li>
  );
}

export function History() {
  const [words, setWords] = useState("");
  const [told, setTold] = useState("");
  const field = useRef<HTMLInputElement>(null);
  const file = useRef<HTMLInputElement>(null);
  const all = conversations.value;
  const found = useMemo(() => all.filter((one) => holds(one, words)).sort((a, b) => b.changed - a.changed), [all, words]);
  useEffect(() => {
    if (searchWanted.value) field.current?.focus();
  }, [searchWanted.value]);
  const load = async (list: FileList | null) => {
    try {
      let count = 0;
      for (const one of list ?? []) count += await take(await one.text());
      setTold(`${count} ${count === 1 ? "chat" : "chats"} imported`);
    } catch (error) {
      setTold(wordsOf(error));
    }
  };
  return (
    <aside class={historyShown.value ? "history shown" : "history"} aria-label="Chats">
      <button type="button" class="new" onClick={() => (newChat(), (historyShown.value = false))}>
        <Plus /> New chat
      </button>
      <label class="search">
        <Search />
        <input ref={field} type="search" placeholder="Search chats" aria-label="Search chats" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
      </label>
      <ul class="chats">
        {found.slice(0, MOST).map((one) => (
          <Row key={one.id} one={one} />
        ))}
      </ul>
      {found.length === 0 ? <p class="quiet none">{words ? "No chat has these words." : "Chats stay in this browser."}</p> : null}
      {found.length > MOST ? <p class="quiet none">{found.length - MOST} more: search for them.</p> : null}
      <footer>
        <p class="quiet" role="status">
          {trouble.value || told}
        </p>
        <div class="row">
          <button type="button" onClick={() => file.current?.click()}>
            <Up /> Import
          </button>
          <button type="button" disabled={all.length === 0} onClick={() => hand("chats.json", all)}>
            <Down /> Export all
          </button>
          <input ref={file} type="file" accept="application/json,.json" multiple hidden aria-label="Chats to import" onChange={(event) => void load(event.currentTarget.files)} />
        </div>
      </footer>
    </aside>
  );
}
