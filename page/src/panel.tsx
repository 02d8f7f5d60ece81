// How answers are asked for: system prompt, sampling, the form of the answer, tools.
import { signal } from "@preact/signals";
import { SAMPLING, wrongJson, wrongNumber } from "./answers";
import { Close } from "./icons";
import { Area, Icon } from "./parts";
import { changed, models } from "./state";
import { blank } from "./tree";
import type { Conversation, Settings } from "./types";

export const panelShown = signal(false);

const TOOLS = `[
  {
    "name": "weather",
    "description": "The weather at a place",
    "parameters": {
      "type": "object",
      "properties": { "place": { "type": "string" } },
      "required": ["place"]
    }
  }
]`;

const SCHEMA = `{
  "type": "object",
  "properties": {
    "name": { "type": "string" },
    "age": { "type": "integer" }
  },
  "required": ["name", "age"]
}`;

/** What is wrong with the settings, so that nothing can be asked; empty: nothing. */
export function wrong(settings: Settings): string {
  const schema = wrongJson(settings.schema, false);
  if (schema) return `The schema: ${schema}`;
  const tools = wrongJson(settings.tools, true);
  if (tools) return `The tools: ${tools}`;
  const number = SAMPLING.find(({ name, whole }) => wrongNumber(settings.sampling[name] ?? "", whole));
  return number ? `${number.label}: ${wrongNumber(settings.sampling[number.name] ?? "", number.whole)}` : "";
}

export function Panel({ of }: { of: Conversation }) {
  const { settings } = of;
  const set = (part: Partial<Settings>) => {
    const next = { ...settings, ...part };
    localStorage.setItem("tokenmill.settings", JSON.stringify({ ...next, schema: "", tools: "", toolChoice: "" }));
    changed({ ...of, settings: next });
  };
  const defaults = models.value.find((model) => model.id === of.panes[0]?.model)?.defaults ?? {};
  const held = (name: string) => (defaults[name] === undefined || defaults[name] === null ? "" : String(defaults[name]));
  const json = (text: string, list: boolean) => {
    const words = wrongJson(text, list);
    return words ? (
      <p class="bad" role="alert">
        {words}
      </p>
    ) : null;
  };
  return (
    <aside class="panel" aria-label="Settings of this chat">
      <header>
        <h2>Settings</h2>
        <Icon label="Close settings" onClick={() => (panelShown.value = false)}>
          <Close />
        </Icon>
      </header>
      <label class="field">
        <span>System prompt</span>
        <Area value={settings.system} placeholder={held("system") || "How the model is to answer"} onInput={(system) => set({ system })} rows={3} />
      </label>
      <fieldset>
        <legend>Sampling</legend>
        <div class="numbers">
          {SAMPLING.map(({ name, label, hint, whole }) => {
            const text = settings.sampling[name] ?? "";
            const bad = wrongNumber(text, whole);
            return (
              <label class="field" key={name} title={hint}>
                <span>{label}</span>
                <input
                  inputMode="decimal"
                  value={text}
                  placeholder={held(name) || "–"}
                  aria-invalid={bad ? "true" : undefined}
                  aria-description={bad || hint}
                  onInput={(event) => set({ sampling: { ...settings.sampling, [name]: event.currentTarget.value } })}
                />
              </label>
            );
          })}
        </div>
        <p class="quiet">Empty: as the model's packager has it, shown in grey.</p>
      </fieldset>
      <div class="field">
        <span>
          <label for="schema">JSON schema of the answer</label>
          {settings.schema ? null : (
            <button type="button" class="link" aria-label="Example of a schema" onClick={() => set({ schema: SCHEMA })}>
              Example
            </button>
          )}
        </span>
        <Area id="schema" class="code" spellcheck={false} value={settings.schema} placeholder="{ … }" onInput={(schema) => set({ schema })} most={260} />
        {json(settings.schema, false)}
      </div>
      <div class="field">
        <span>
          <label for="tools">Tools</label>
          {settings.tools ? null : (
            <button type="button" class="link" aria-label="Example of tools" onClick={() => set({ tools: TOOLS })}>
              Example
            </button>
          )}
        </span>
        <Area id="tools" class="code" spellcheck={false} value={settings.tools} placeholder="[ … ]" onInput={(tools) => set({ tools })} most={320} />
        {json(settings.tools, true)}
      </div>
      {settings.tools.trim() ? (
        <label class="field">
          <span>Use of tools</span>
          <select value={settings.toolChoice} onChange={(event) => set({ toolChoice: event.currentTarget.value })}>
            <option value="">The model decides</option>
            <option value="required">A tool must be called</option>
            <option value="none">No tool is called</option>
          </select>
        </label>
      ) : null}
      <p class="quiet">When the model calls a tool, you write its result.</p>
      <div class="row">
        <button type="button" onClick={() => set(blank())}>
          Reset all
        </button>
      </div>
    </aside>
  );
}
