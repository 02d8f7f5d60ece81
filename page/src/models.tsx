// The models that are here and those that can be had: what would fit before it is fetched, pulling, loading, pinning.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ask, json, keyCount, lines, wordsOf } from "./api";
import { Pin } from "./icons";
import { Icon } from "./parts";
import { models, modelsKnown, readModels } from "./state";
import type { Model } from "./types";
import { bytes, count, rate, seconds } from "./words";

/** What stands in a model's files, as `/api/tags` tells it. */
interface Tag {
  name: string;
  size: number;
  details: { family: string; parameter_size: string; quantization_level: string };
}

/** What is planned for a model, as `/models/plan` tells it. */
interface Plan {
  model: string;
  pull: string;
  here: boolean;
  files: number;
  fits: boolean;
  why: string | null;
  context: number | null;
  memory: { needed: number } | null;
  speed: { prompt_tok_s: number; decode_tok_s: number | null; first_s: number; bound: string } | null;
  keeps_pace: boolean | null;
  reasons: string[];
  warnings: string[];
  available: number;
}

/** A download as it goes. */
interface Pull {
  name: string;
  words: string;
  /** The file that comes now, and bytes of files before it. */
  file: string;
  before: number;
  done: number;
  total: number;
  began: number;
  end: "" | "here" | "failed";
}

const EVERY_MS = 2000;

const tags = signal<Tag[]>([]);
const pulls = signal<Pull[]>([]);
const troubles = signal<Record<string, string>>({});
const busy = signal<Record<string, string>>({});

async function readTags() {
  tags.value = (await json<{ models: Tag[] }>("/api/tags")).models;
}

async function pull(name: string) {
  const one: Pull = { name, words: "asking", file: "", before: 0, done: 0, total: 0, began: Date.now(), end: "" };
  const tell = (part: Partial<Pull>) => {
    Object.assign(one, part);
    pulls.value = [{ ...one }, ...pulls.value.filter((other) => other.name !== name)];
  };
  tell({});
  try {
    for await (const line of lines(await ask("/api/pull", { body: { model: name } }))) {
      if (!line.trim()) continue;
      const said = JSON.parse(line);
      if (said.error) throw new Error(said.error);
      const next = said.digest !== undefined && said.digest !== one.file;
      if (next) tell({ file: said.digest, before: one.before + one.total, done: 0, total: 0 });
      tell({ words: said.status ?? "", done: said.completed ?? one.done, total: said.total ?? one.total });
    }
    tell({ words: "", end: "here" });
    await Promise.all([readModels(), readTags()]);
  } catch (error) {
    tell({ words: wordsOf(error), end: "failed" });
  }
}

async function change(model: Model, verb: "load" | "unload" | "pin", body: Record<string, unknown> = {}) {
  const { [model.id]: _, ...others } = troubles.value;
  troubles.value = others;
  busy.value = { ...busy.value, [model.id]: verb };
  try {
    await ask(`/models/${verb}`, { body: { model: model.id, ...body } });
  } catch (error) {
    troubles.value = { ...troubles.value, [model.id]: wordsOf(error) };
  }
  const { [model.id]: __, ...rest } = busy.value;
  busy.value = rest;
  await readModels().catch(() => undefined);
}

const tagOf = (model: Model) => tags.value.find((tag) => tag.name === model.id || `ollama:${tag.name}` === model.id);

function Row({ model }: { model: Model }) {
  const { status } = model;
  const tag = tagOf(model);
  const about = [tag?.details.family, tag?.details.parameter_size, tag?.details.quantization_level].filter(Boolean).join(" · ");
  const doing = busy.value[model.id];
  const left = status.expires_at ? status.expires_at - Date.now() / 1000 : undefined;
  const facts = [
    status.bytes ? `${bytes(status.bytes)} in memory` : tag?.size ? `${bytes(tag.size)} on disk` : "",
    model.max_model_len ? `context ${count(model.max_model_len)}` : "",
    status.pinned ? "pinned" : left !== undefined && left > 0 ? `goes in ${seconds(left)} if nobody asks` : "",
  ];
  const trouble = troubles.value[model.id] ?? (status.failed ? status.reason : "");
  const there = status.value === "loaded";
  return (
    <li class="model">
      <div class="about">
        <h3>{model.id}</h3>
        <p class="quiet">{[about, ...facts].filter(Boolean).join(" · ")}</p>
        {trouble ? (
          <p class="bad" role="alert">
            {trouble}
          </p>
        ) : null}
      </div>
      <span class={`state ${doing === "load" ? "loading" : status.value}`}>{doing === "load" ? "loading" : status.value}</span>
      <div class="row">
        <Icon label={`${status.pinned ? "Unpin" : "Pin"} ${model.id}`} aria-pressed={Boolean(status.pinned)} onClick={() => void change(model, "pin", { pinned: !status.pinned })}>
          <Pin />
        </Icon>
        {there || status.value === "loading" ? (
          <button type="button" aria-label={`Unload ${model.id}`} onClick={() => void change(model, "unload")}>
            Unload
          </button>
        ) : (
          <button type="button" aria-label={`Load ${model.id}`} disabled={Boolean(doing) || status.value === "unloading"} onClick={() => void change(model, "load")}>
            Load
          </button>
        )}
      </div>
    </li>
  );
}

function Progress({ of }: { of: Pull }) {
  const passed = (Date.now() - of.began) / 1000;
  const speed = passed > 0 ? (of.before + of.done) / passed : 0;
  const left = speed > 0 && of.total > of.done ? (of.total - of.done) / speed : 0;
  const words = of.total ? `${of.file}: ${bytes(of.done)} of ${bytes(of.total)} · ${bytes(speed)}/s${left ? ` · ${seconds(left)} left` : ""}` : of.words;
  return (
    <li class="pull">
      <div class="about">
        <h3>{of.name}</h3>
        {of.end === "failed" ? (
          <p class="bad" role="alert">
            {of.words}
          </p>
        ) : (
          <p class="quiet" role="status">
            {of.end === "here" ? "It is here." : words}
          </p>
        )}
        {of.end === "" ? <progress max={of.total || undefined} value={of.total ? of.done : undefined} aria-label={`Download of ${of.name}`} /> : null}
      </div>
      {of.end === "" ? null : (
        <button type="button" aria-label={`Hide ${of.name}`} onClick={() => (pulls.value = pulls.value.filter((one) => one.name !== of.name))}>
          Hide
        </button>
      )}
    </li>
  );
}

function verdict(plan: Plan): { word: string; kind: string; words: string } {
  if (!plan.fits) return { word: "does not fit", kind: "no", words: plan.why ?? plan.reasons[0] ?? "" };
  const speed = plan.speed?.decode_tok_s;
  const words = [
    speed ? `about ${rate(speed)} tok/s` : "",
    plan.speed ? `a usual prompt is read in ${seconds(plan.speed.first_s)}` : "",
    plan.memory ? `${bytes(plan.memory.needed)} of ${bytes(plan.available)} memory` : "",
    plan.context ? `context ${count(plan.context)}` : "",
  ];
  const slow = plan.keeps_pace === false;
  return { word: slow ? "fits, slow" : "fits", kind: slow ? "slow" : "yes", words: words.filter(Boolean).join(" · ") };
}

function PlanRow({ plan }: { plan: Plan }) {
  const { word, kind, words } = verdict(plan);
  const going = pulls.value.some((one) => one.name === plan.pull && one.end === "");
  const notes = [...plan.reasons, ...plan.warnings];
  return (
    <li class="model">
      <div class="about">
        <h3>{plan.model}</h3>
        <p class="quiet">
          {bytes(plan.files)} · {words}
        </p>
        {notes.length ? (
          <details class="why">
            <summary>Why</summary>
            <ul>
              {notes.map((note) => (
                <li>{note}</li>
              ))}
            </ul>
          </details>
        ) : null}
      </div>
      <span class={`state ${kind}`}>{word}</span>
      {plan.here ? <span class="quiet">here</span> : (
        <button type="button" aria-label={`Pull ${plan.pull}`} disabled={going} onClick={() => void pull(plan.pull)}>
          Pull
        </button>
      )}
    </li>
  );
}

function Get() {
  const [name, setName] = useState("");
  const [plans, setPlans] = useState<Plan[]>([]);
  const [one, setOne] = useState<{ name: string; plans: Plan[]; words: string } | null>(null);
  const [fixed, setFixed] = useState("");
  useEffect(() => {
    json<{ data: Plan[] }>("/models/plan").then(
      ({ data }) => setPlans(data),
      (error) => setFixed(wordsOf(error)),
    );
  }, [keyCount.value]);
  const look = async () => {
    try {
      const { data } = await json<{ data: Plan[] }>(`/models/plan?model=${encodeURIComponent(name.trim())}`);
      setOne({ name: name.trim(), plans: data, words: data.length ? "" : "Nothing is known of it before its files are read: it is planned when it is here." });
    } catch (error) {
      setOne({ name: name.trim(), plans: [], words: wordsOf(error) });
    }
  };
  if (fixed) return <p class="quiet">{fixed}</p>;
  const shown = plans.filter((plan) => !models.value.some((model) => model.id === plan.model || model.aliases.includes(plan.model)));
  return (
    <>
      <form
        class="get"
        onSubmit={(event) => {
          event.preventDefault();
          if (name.trim()) void pull(name.trim());
        }}
      >
        <label class="field">
          <span>Name of a model</span>
          <input value={name} placeholder="smollm2, llama3.2:1b, hf.co/user/repo:Q4_K_M" onInput={(event) => setName(event.currentTarget.value)} spellcheck={false} autocapitalize="off" />
        </label>
        <button type="button" disabled={!name.trim()} onClick={() => void look()}>
          Does it fit?
        </button>
        <button type="submit" class="main" disabled={!name.trim()}>
          Pull
        </button>
      </form>
      {one ? (
        <ul class="list" aria-label={`Plan of ${one.name}`}>
          {one.plans.map((plan) => (
            <PlanRow key={plan.model} plan={plan} />
          ))}
          {one.words ? <li class="quiet">{one.words}</li> : null}
        </ul>
      ) : null}
      <ul class="list" aria-label="Downloads">
        {pulls.value.map((pull) => (
          <Progress key={pull.name} of={pull} />
        ))}
      </ul>
      {shown.length ? (
        <>
          <h2>What this machine could run</h2>
          <ul class="list" aria-label="Models that can be pulled">
            {shown.map((plan) => (
              <PlanRow key={plan.model} plan={plan} />
            ))}
          </ul>
        </>
      ) : null}
    </>
  );
}

export function Models() {
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    const look = () => {
      if (document.visibilityState !== "visible") return;
      readModels().then(
        () => setTrouble(""),
        (error) => setTrouble(wordsOf(error)),
      );
    };
    look();
    void readTags().catch(() => undefined);
    const timer = setInterval(look, EVERY_MS);
    return () => clearInterval(timer);
  }, [keyCount.value]);
  return (
    <main class="screen models">
      <h1>Models</h1>
      {trouble ? (
        <p class="bad" role="alert">
          {trouble}
        </p>
      ) : null}
      <h2>Here</h2>
      <ul class="list" aria-label="Models that are here">
        {models.value.map((model) => (
          <Row key={model.id} model={model} />
        ))}
      </ul>
      {modelsKnown.value && models.value.length === 0 ? <p class="quiet">None yet. Get one below.</p> : null}
      <h2>Get a model</h2>
      <Get />
    </main>
  );
}
