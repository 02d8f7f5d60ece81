// Requests that run and those that ran lately, where the server tells of them (`/requests`): where the time of each went,
// and why its prompt was computed.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { json, keyCount, Refused, wordsOf } from "./api";
import { type Part, Parts } from "./charts";
import { Card } from "./parts";
import { ago, count, rate, seconds } from "./words";

interface Summary {
  id: string;
  path: string;
  model: string | null;
  key: string | null;
  created: number;
  state: "running" | "ended";
  status: number | null;
  end: string | null;
  finish_reason: string | null;
  seconds: number;
  first_token_s: number | null;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
}

interface Detail extends Summary {
  parts: Record<string, number>;
  prompts: { miss: { reason: string; why: string } | null; drafts: { verified: number; accepted: number }; displaced: number }[];
}

const EVERY_MS = 1000;
/** Rows that are shown. */
const MOST = 30;

const list = signal<Summary[] | null>(null);
const chosen = signal<Detail | null>(null);
const trouble = signal("");
/** A server of another version may have no such list: it is asked once. */
let there = true;

async function poll() {
  if (!there) return;
  try {
    list.value = (await json<{ data: Summary[] }>("/requests")).data;
    if (chosen.value?.state === "running") await open(chosen.value.id);
    trouble.value = "";
  } catch (error) {
    there = !(error instanceof Refused && error.status === 404);
    trouble.value = there ? wordsOf(error) : "";
  }
}

async function open(id: string) {
  try {
    chosen.value = await json<Detail>(`/requests/${encodeURIComponent(id)}`);
  } catch (error) {
    chosen.value = null;
    trouble.value = wordsOf(error);
  }
}

/** Seconds of each part, in order; what took nothing is left out. */
function timeline(parts: Record<string, number>): Part[] {
  const all = Object.entries(parts).filter(([name, value]) => name !== "total" && value > 0);
  return all.map(([name, value]) => ({ name, value, shown: seconds(value) }));
}

function Timeline({ of }: { of: Detail }) {
  const why = of.prompts.map((prompt) => prompt.miss?.why).filter(Boolean);
  const drafts = of.prompts.reduce((all, { drafts: d }) => [all[0] + d.accepted, all[1] + d.verified] as [number, number], [0, 0] as [number, number]);
  const facts = [
    `${seconds(of.parts.total ?? of.seconds)} in all`,
    of.cached_tokens ? `${count(of.cached_tokens)} of ${count(of.prompt_tokens)} prompt tokens were cached` : "",
    why.length ? `then: ${why[0]}` : "",
    drafts[1] ? `${count(drafts[0])} of ${count(drafts[1])} guessed tokens were right` : "",
  ];
  return (
    <div class="timeline">
      <h3>{of.id}</h3>
      <Parts parts={timeline(of.parts)} label={`Where the time of ${of.id} went`} />
      <p class="quiet">{facts.filter(Boolean).join(" · ")}</p>
    </div>
  );
}

export function Requests() {
  useEffect(() => {
    const look = () => document.visibilityState === "visible" && void poll();
    look();
    const timer = setInterval(look, EVERY_MS);
    return () => clearInterval(timer);
  }, [keyCount.value]);
  if (!list.value) return null;
  return (
    <Card title="Requests, one by one" wide>
      {trouble.value ? <p class="bad">{trouble.value}</p> : null}
      {chosen.value ? <Timeline of={chosen.value} /> : null}
      <div class="table" tabIndex={0} role="region" aria-label="Requests">
        <table>
          <thead>
            <tr>
              <th>Request</th>
              <th>Model</th>
              <th>State</th>
              <th class="at-right">First token</th>
              <th class="at-right">All</th>
              <th class="at-right">Prompt</th>
              <th class="at-right">Cached</th>
              <th class="at-right">Tokens</th>
              <th class="at-right">tok/s</th>
            </tr>
          </thead>
          <tbody>
            {list.value.slice(0, MOST).map((one) => {
              const writing = one.seconds - (one.first_token_s ?? one.seconds);
              return (
                <tr key={one.id} class={chosen.value?.id === one.id ? "here" : undefined}>
                  <td>
                    <button type="button" class="link" title={`Where the time of ${one.id} went`} onClick={() => void open(one.id)}>
                      {ago(one.created * 1000)} {one.path}
                    </button>
                  </td>
                  <td>{one.model ?? "–"}</td>
                  <td>{one.state === "running" ? "running" : (one.finish_reason ?? one.end ?? one.status ?? "ended")}</td>
                  <td class="at-right">{one.first_token_s === null ? "–" : seconds(one.first_token_s)}</td>
                  <td class="at-right">{seconds(one.seconds)}</td>
                  <td class="at-right">{count(one.prompt_tokens)}</td>
                  <td class="at-right">{count(one.cached_tokens)}</td>
                  <td class="at-right">{count(one.completion_tokens)}</td>
                  <td class="at-right">{writing > 0 && one.completion_tokens > 1 ? rate((one.completion_tokens - 1) / writing) : "–"}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
