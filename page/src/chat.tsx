// The chat: messages of one conversation in one pane or two, and the field that says the next one.
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { runs, say, stopAll } from "./answers";
import { wordsOf } from "./api";
import { History, historyShown } from "./history";
import { Clip, Close, Columns, Menu, Mark, Send, Sliders, Stop } from "./icons";
import { Message } from "./message";
import { Panel, panelShown, wrong } from "./panel";
import { Area, Icon } from "./parts";
import { changed, current, models, modelsKnown, sees, shortName, writers } from "./state";
import { openCalls, path, titleOf } from "./tree";
import type { Conversation, FileText, Model, Pane, Picture } from "./types";
import { bytes } from "./words";

/** Largest file that goes with a message, and text of a paste from which it is a file, bytes. */
const FILE_BYTES = 1 << 20;
/** Largest image: the server takes none that is larger. */
const IMAGE_BYTES = 20 << 20;
const PASTE_CHARS = 4000;

/** What is written in the field, by conversation: it is there again after a look elsewhere. */
const drafts = signal<Record<string, string>>({});

function ModelChoice({ of, pane, label }: { of: Conversation; pane: Pane; label: string }) {
  const known = writers.value;
  const choose = (id: string) => {
    pane.model = id;
    localStorage.setItem("tokenmill.model", id);
    changed(of, Object.keys(of.turns).length > 0);
  };
  const there = (model: Model) => model.status.value === "loaded";
  const option = (model: Model) => (
    <option key={model.id} value={model.id}>
      {shortName(model.id)}
      {model.status.value === "loading" ? " (loading)" : ""}
    </option>
  );
  const isMissing = pane.model !== "" && modelsKnown.value && !known.some((model) => model.id === pane.model);
  return (
    <select class="choice" aria-label={label} title={pane.model} value={pane.model} onChange={(event) => choose(event.currentTarget.value)}>
      {isMissing ? <option value={pane.model}>{shortName(pane.model)} (not here)</option> : null}
      {pane.model === "" ? <option value="">Choose a model</option> : null}
      {known.some(there) ? <optgroup label="In memory">{known.filter(there).map(option)}</optgroup> : null}
      {known.every(there) ? null : <optgroup label="Loaded when asked">{known.filter((model) => !there(model)).map(option)}</optgroup>}
    </select>
  );
}

function Head({ of }: { of: Conversation }) {
  const two = of.panes.length > 1;
  const split = () => {
    const [one] = of.panes;
    if (!one) return;
    const other = writers.value.find((model) => model.id !== one.model)?.id ?? one.model;
    changed({ ...of, panes: two ? [one] : [one, { model: other, leaf: one.leaf }] });
  };
  return (
    <header class="head">
      <span class="only-narrow">
        <Icon label="Chats" aria-expanded={historyShown.value} onClick={() => (historyShown.value = !historyShown.value)}>
          <Menu />
        </Icon>
      </span>
      {two ? <span class="grow" /> : of.panes.map((pane) => <ModelChoice of={of} pane={pane} label="Model" />)}
      {two ? null : <span class="grow" />}
      <Icon label={two ? "One model" : "Two models side by side"} aria-pressed={two} onClick={split}>
        <Columns />
      </Icon>
      <Icon label="Settings" aria-expanded={panelShown.value} onClick={() => (panelShown.value = !panelShown.value)}>
        <Sliders />
      </Icon>
    </header>
  );
}

/** The messages of a pane; it stays at the end while it is at the end. */
function Thread({ of, pane, two, at }: { of: Conversation; pane: Pane; two: boolean; at: number }) {
  const view = useRef<HTMLDivElement>(null);
  const inside = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const turns = path(of, pane.leaf);
  useLayoutEffect(() => {
    const [box, content] = [view.current, inside.current];
    if (!box || !content) return;
    const follow = () => {
      if (atEnd.current) box.scrollTop = box.scrollHeight;
    };
    const watch = new ResizeObserver(follow);
    watch.observe(content);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    atEnd.current = true;
    if (view.current) view.current.scrollTop = view.current.scrollHeight;
  }, [of.id, turns.length]);
  return (
    <section class="thread" aria-label={two ? `Answers of ${pane.model}` : "Messages"}>
      {two ? (
        <header>
          <ModelChoice of={of} pane={pane} label={at === 0 ? "First model" : "Second model"} />
        </header>
      ) : null}
      <div
        class="scroll"
        ref={view}
        tabIndex={0}
        role="log"
        aria-label={two ? `Messages with ${pane.model}` : "Messages"}
        onScroll={(event) => {
          const box = event.currentTarget;
          atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
        }}
      >
        <div class="turns" ref={inside}>
          {turns.length === 0 ? <Welcome /> : null}
          {turns.map((turn) => (
            <Message key={turn.id} of={of} pane={pane} turn={turn} />
          ))}
        </div>
      </div>
    </section>
  );
}

function Welcome() {
  const none = modelsKnown.value && models.value.length === 0;
  return (
    <div class="welcome">
      <Mark />
      <h1>What shall we talk about?</h1>
      {none ? (
        <p>
          There is no model here yet. <a href="#/models">Get one</a>.
        </p>
      ) : (
        <p class="quiet">What you write goes to this server and nowhere else.</p>
      )}
    </div>
  );
}

async function textOf(file: File): Promise<FileText> {
  if (file.size > FILE_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; a file may have ${bytes(FILE_BYTES)}`);
  const raw = new Uint8Array(await file.arrayBuffer());
  try {
    if (raw.includes(0)) throw new Error("zero bytes");
    return { name: file.name, text: new TextDecoder("utf-8", { fatal: true }).decode(raw) };
  } catch {
    throw new Error(`${file.name} is no text, and no image that is read`);
  }
}

const isImage = (file: File) => /^image\/(png|jpeg|webp|gif|bmp)$/.test(file.type);

function pictureOf(file: File): Promise<Picture> {
  return new Promise((resolve, reject) => {
    if (file.size > IMAGE_BYTES) reject(new Error(`${file.name} has ${bytes(file.size)}; an image may have ${bytes(IMAGE_BYTES)}`));
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name, url: String(reader.result) });
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

function Composer({ of }: { of: Conversation }) {
  const text = drafts.value[of.id] ?? "";
  const setText = (next: string) => (drafts.value = { ...drafts.value, [of.id]: next });
  const [files, setFiles] = useState<FileText[]>([]);
  const [images, setImages] = useState<Picture[]>([]);
  const [told, setTold] = useState("");
  const [over, setOver] = useState(false);
  const picker = useRef<HTMLInputElement>(null);
  const running = of.panes.flatMap((pane) => path(of, pane.leaf)).filter((turn) => runs.value[turn.id]);
  const waits = of.panes.some((pane) => openCalls(path(of, pane.leaf)).length > 0);
  const noModel = of.panes.some((pane) => !pane.model);
  const bad = wrong(of.settings);
  const empty = !text.trim() && !files.length && !images.length;
  // Whom images are shown to: all who are to answer must see them.
  const blind = of.panes.find((pane) => !sees(pane.model));
  useEffect(() => {
    setFiles([]);
    setImages([]);
  }, [of.id]);
  const take = async (list: Iterable<File>) => {
    setTold("");
    for (const file of list) {
      try {
        if (isImage(file)) {
          if (blind) throw new Error(`${file.name} is an image, and ${shortName(blind.model)} is not known to see any`);
          const picture = await pictureOf(file);
          setImages((all) => [...all, picture]);
          continue;
        }
        const read = await textOf(file);
        setFiles((all) => [...all, read]);
      } catch (error) {
        setTold(wordsOf(error));
      }
    }
  };
  const send = () => {
    if (empty || running.length || noModel || bad) return;
    setText("");
    setFiles([]);
    setImages([]);
    setTold("");
    say(of, text, files, images);
  };
  return (
    <form
      class={over ? "composer over" : "composer"}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void take(event.dataTransfer?.files ?? []);
      }}
    >
      {files.length || images.length ? (
        <ul class="files">
          {images.map((image, at) => (
            <li class="image">
              <img src={image.url} alt={image.name} />
              <Icon label={`Remove ${image.name}`} onClick={() => setImages(images.filter((_, other) => other !== at))}>
                <Close />
              </Icon>
            </li>
          ))}
          {files.map((file, at) => (
            <li>
              {file.name}
              <Icon label={`Remove ${file.name}`} onClick={() => setFiles(files.filter((_, other) => other !== at))}>
                <Close />
              </Icon>
            </li>
          ))}
        </ul>
      ) : null}
      <div class="line">
        <Icon label={blind ? "Add files as text" : "Add images, or files as text"} onClick={() => picker.current?.click()}>
          <Clip />
        </Icon>
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          aria-label="Files"
          onChange={(event) => {
            void take([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        <Area
          id="say"
          aria-label="Message"
          placeholder={waits ? "Write the tool's result above, or go on here" : "Message"}
          value={text}
          onInput={setText}
          autofocus
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              send();
            }
          }}
          onPaste={(event) => {
            const pictures = [...(event.clipboardData?.files ?? [])].filter(isImage);
            if (pictures.length && !blind) {
              event.preventDefault();
              void take(pictures);
              return;
            }
            const pasted = event.clipboardData?.getData("text/plain") ?? "";
            if (pasted.length < PASTE_CHARS) return;
            event.preventDefault();
            setFiles([...files, { name: `pasted-${files.length + 1}.txt`, text: pasted }]);
          }}
        />
        {running.length ? (
          <Icon label="Stop" class="send" onClick={() => stopAll(running.map((turn) => turn.id))}>
            <Stop />
          </Icon>
        ) : (
          <Icon label="Send" class="send" type="submit" disabled={empty || noModel || Boolean(bad)}>
            <Send />
          </Icon>
        )}
      </div>
      <p class="quiet hint" role="status">
        {told || bad || (noModel && modelsKnown.value ? "Choose a model first." : "")}
      </p>
    </form>
  );
}

export function Chat() {
  const of = current.value;
  const two = of.panes.length > 1;
  useEffect(() => {
    document.title = Object.keys(of.turns).length ? `${titleOf(of)} · tokenmill` : "tokenmill";
  }, [of]);
  // The first model that is there is the one that answers, until somebody chooses another.
  useEffect(() => {
    // (As the chat is by now: what was set since it was drawn stays.)
    const now = current.peek();
    const [first] = writers.value;
    const [pane] = now.panes;
    const known = writers.value.some((model) => model.id === pane?.model);
    if (first && pane && (pane.model === "" || (!known && !pane.leaf))) {
      pane.model = first.id;
      changed(now, false);
    }
  }, [of.id, writers.value]);
  return (
    <div class={panelShown.value ? "chat with-panel" : "chat"}>
      <History />
      {historyShown.value ? <div class="shade" onClick={() => (historyShown.value = false)} /> : null}
      <main>
        <Head of={of} />
        <div class={two ? "threads two" : "threads"}>
          {of.panes.map((pane, at) => (
            <Thread key={at} of={of} pane={pane} two={two} at={at} />
          ))}
        </div>
        <Composer of={of} />
      </main>
      {panelShown.value ? <Panel of={of} /> : null}
    </div>
  );
}
