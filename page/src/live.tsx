// What the server does now: its metrics, read once a second while somebody looks.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { runs } from "./answers";
import { ask, keyCount, Refused, wordsOf } from "./api";
import { Lines, Parts } from "./charts";
import { missWords } from "./message";
import * as metrics from "./metrics";
import type { Reading } from "./metrics";
import { Card } from "./parts";
import { Requests } from "./requests";
import { conversations } from "./state";
import { bytes, count, percent, rate, seconds } from "./words";

const EVERY_MS = 1000;
/** Readings that are kept: two minutes. */
const KEPT = 121;
/** Answers of this page that are listed. */
const ANSWERS = 12;

const readings = signal<Reading[]>([]);
const trouble = signal("");

async function poll() {
  try {
    const text = await (await ask("/metrics")).text();
    readings.value = [...readings.value, metrics.read(text, Date.now())].slice(-KEPT);
    trouble.value = "";
  } catch (error) {
    const forbidden = error instanceof Refused && error.status === 403;
    trouble.value = forbidden ? "These numbers tell of everybody's requests: they are for the server's first key, or its --metrics-key." : wordsOf(error);
  }
}

/** What grew between each reading and the one before it. */
const rates = (name: string) => readings.value.map((now, at) => metrics.rate(readings.value[at - 1], now, name)).slice(1);

function Facts({ of }: { of: [string, string][] }) {
  return (
    <dl>
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Speed({ now, total }: { now: Reading; total: (name: string) => number }) {
  const made = rates("tokenmill_generated_tokens_total");
  const read = rates("tokenmill_prompt_tokens_total");
  return (
    <Card title="Tokens" value={rate(made.at(-1) ?? 0)} unit="generated a second">
      <Lines series={[made]} label="Tokens generated a second, last two minutes" />
      <Facts
        of={[
          ["Prompt tokens a second", rate(read.at(-1) ?? 0)],
          ["Generated so far", count(total("tokenmill_generated_tokens_total"))],
          ["Drafts that were right", percent(metrics.sum(now, "tokenmill_accepted_draft_tokens_total"), metrics.sum(now, "tokenmill_drafted_tokens_total"))],
        ]}
      />
    </Card>
  );
}

function Queue({ now, total }: { now: Reading; total: (name: string) => number }) {
  const running = readings.value.map((one) => metrics.sum(one, "tokenmill_sequences_running"));
  const waiting = readings.value.map((one) => metrics.sum(one, "tokenmill_sequences_waiting"));
  return (
    <Card title="Requests" value={`${count(running.at(-1) ?? 0)} running`} unit={`${count(waiting.at(-1) ?? 0)} waiting`}>
      <Lines series={[running, waiting]} label="Sequences running and waiting, last two minutes" />
      <Facts
        of={[
          ["A new one would wait", seconds(metrics.most(now, "tokenmill_predicted_wait_seconds"))],
          ["Finished", count(metrics.sum(now, "tokenmill_requests_total", { outcome: "finished" }))],
          ["Cancelled, failed", `${count(metrics.sum(now, "tokenmill_requests_total", { outcome: "cancelled" }))}, ${count(metrics.sum(now, "tokenmill_requests_total", { outcome: "failed" }))}`],
          ["Paused for memory", count(total("tokenmill_preemptions_total"))],
        ]}
      />
    </Card>
  );
}

function Steps({ now, total }: { now: Reading; total: (name: string) => number }) {
  const of = readings.value;
  const mean = of.map((one, at) => {
    const steps = metrics.rate(of[at - 1], one, "tokenmill_step_seconds_count");
    return steps > 0 ? metrics.rate(of[at - 1], one, "tokenmill_step_seconds_sum") / steps : 0;
  });
  const bound = metrics.most(now, "tokenmill_token_gap_bound_seconds");
  const last = mean.findLast((value) => value > 0) ?? NaN;
  return (
    <Card title="Step" value={seconds(last)} unit="mean, lately; dashed: promised">
      <Lines series={[mean.slice(1)]} bound={bound} label="Mean time of a step, last two minutes, and the longest gap that was promised" />
      <Facts
        of={[
          ["Longest gap between tokens", seconds(metrics.most(now, "tokenmill_token_gap_max_seconds"))],
          ["Longest that was promised", bound ? seconds(bound) : "–"],
          ["Steps later than promised", `${count(total("tokenmill_late_steps_total"))} of ${count(total("tokenmill_steps_total"))}`],
        ]}
      />
    </Card>
  );
}

function Cache({ total }: { total: (name: string) => number }) {
  const of = readings.value;
  const share = of.slice(1).map((one, at) => {
    const prompt = metrics.rate(of[at], one, "tokenmill_prompt_tokens_total");
    return prompt > 0 ? metrics.rate(of[at], one, "tokenmill_cached_tokens_total") / prompt : 0;
  });
  const [cached, prompt] = [total("tokenmill_cached_tokens_total"), total("tokenmill_prompt_tokens_total")];
  return (
    <Card title="Prompt cache" value={percent(cached, prompt)} unit="of prompt tokens were there">
      <Lines series={[share]} label="Share of prompt tokens found in the cache, last two minutes" />
      <Facts
        of={[
          ["Not computed again", `${count(cached)} of ${count(prompt)}`],
          ["Read from disk", count(total("tokenmill_disk_tokens_total"))],
          ["Kept by leases", count(total("tokenmill_leased_tokens"))],
        ]}
      />
    </Card>
  );
}

function Latency() {
  const now = readings.value.at(-1);
  const row = (title: string, name: string): [string, string] => [title, [0.5, 0.95].map((share) => seconds(metrics.quantile(undefined, now, name, share))).join(" · ")];
  return (
    <Card title="How long it takes" value={seconds(metrics.quantile(undefined, now, "tokenmill_time_to_first_token_seconds", 0.5))} unit="to the first token, by half of all">
      <p class="quiet">Half of all were faster, and 95 of 100:</p>
      <Facts
        of={[
          row("First token", "tokenmill_time_to_first_token_seconds"),
          row("Between tokens", "tokenmill_inter_token_seconds"),
          row("Whole request", "tokenmill_request_seconds"),
          row("Step", "tokenmill_step_seconds"),
        ]}
      />
    </Card>
  );
}

function Responses({ now, total }: { now: Reading; total: (name: string) => number }) {
  const of = (status: string) => metrics.sum(now, "tokenmill_http_responses_total", { status });
  const refused = ["400", "401", "403", "404", "405", "408", "413", "415", "421"].map(of).reduce((a, b) => a + b, 0);
  const failed = of("500") + of("503") + of("504");
  return (
    <Card title="Responses" value={count(of("200"))} unit="answered well">
      <Facts
        of={[
          ["Refused as they were", count(refused)],
          ["Told to come back (429)", count(of("429"))],
          ["Failed", count(failed)],
          ["Open connections", count(total("tokenmill_http_connections"))],
          ["The server is up for", seconds(total("tokenmill_uptime_seconds"))],
        ]}
      />
    </Card>
  );
}

function Memory({ now }: { now: Reading }) {
  const models = metrics.values(now, "tokenmill_memory_bytes", "model_name");
  const [held, cap] = [metrics.sum(now, "tokenmill_models_bytes"), metrics.sum(now, "tokenmill_models_cap_bytes")];
  return (
    <Card title="Memory by model" wide>
      {models.length === 0 ? <p class="quiet">No model is in memory.</p> : null}
      {models.map((model) => {
        const part = (name: string) => metrics.sum(now, "tokenmill_memory_bytes", { model_name: model, part: name });
        const parts = ["weights", "caches", "buffers", "vocabulary"].map((name) => ({ name, value: part(name), shown: bytes(part(name)) }));
        const groups = metrics.values({ ...now, families: now.families }, "tokenmill_kv_blocks", "group");
        const blocks = (group: string) => (state: string) => metrics.sum(now, "tokenmill_kv_blocks", { model_name: model, group, state });
        return (
          <article key={model}>
            <h3>{model}</h3>
            <Parts parts={parts} label={`Memory of ${model}`} />
            {groups.map((group) => {
              const of = blocks(group);
              if (of("total") === 0) return null;
              const shown = ["used", "cached", "free"].map((state) => ({ name: state, value: of(state), shown: count(of(state)) }));
              return (
                <div class="blocks" key={group}>
                  <p class="quiet">
                    Blocks of keys and values{groups.length > 1 ? `, group ${group}` : ""}: {count(of("total"))}
                  </p>
                  <Parts parts={shown} label={`Blocks of ${model}, group ${group}`} />
                </div>
              );
            })}
          </article>
        );
      })}
      {cap > 0 ? (
        <p class="quiet">
          All models: {bytes(held)} of {bytes(cap)}.
        </p>
      ) : null}
    </Card>
  );
}

function Answers() {
  const all = conversations.value.flatMap((one) => Object.values(one.turns)).filter((turn) => turn.figures);
  const last = all.sort((a, b) => b.at - a.at).slice(0, ANSWERS);
  return (
    <Card title="Your last answers" wide>
      {last.length === 0 ? (
        <p class="quiet">Ask something in the chat: each answer tells here what it took, and why its prompt had to be computed.</p>
      ) : (
        <div class="table" tabIndex={0} role="region" aria-label="Your last answers">
          <table>
            <thead>
              <tr>
                <th>Model</th>
                <th class="at-right">First token</th>
                <th class="at-right">Tokens</th>
                <th class="at-right">tok/s</th>
                <th class="at-right">Prompt</th>
                <th class="at-right">Cached</th>
                <th>Why not cached</th>
              </tr>
            </thead>
            <tbody>
              {last.map(({ id, model, figures: f }) => (
                <tr key={id}>
                  <td>{model}</td>
                  <td class="at-right">{seconds(f!.first_s)}</td>
                  <td class="at-right">{count(f!.tokens)}</td>
                  <td class="at-right">{f!.rest_s > 0 ? rate((f!.tokens - 1) / f!.rest_s) : "–"}</td>
                  <td class="at-right">{count(f!.prompt)}</td>
                  <td class="at-right">{count(f!.cached)}</td>
                  <td>{missWords(f!.miss) || "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}

/** Reads once a second while somebody looks, or an answer of this page is on its way. */
export function useMetrics(shown: boolean) {
  const wanted = shown || Object.keys(runs.value).length > 0;
  useEffect(() => {
    if (!wanted) return;
    const look = () => document.visibilityState === "visible" && void poll();
    look();
    const timer = setInterval(look, EVERY_MS);
    return () => clearInterval(timer);
  }, [wanted, keyCount.value]);
}

export function Live() {
  const now = readings.value.at(-1);
  const total = (name: string) => metrics.sum(now, name);
  return (
    <main class="screen live">
      <h1>Live</h1>
      {trouble.value ? (
        <p class="bad" role="alert">
          {trouble.value}
        </p>
      ) : null}
      {now ? (
        <div class="cards">
          <Speed now={now} total={total} />
          <Queue now={now} total={total} />
          <Steps now={now} total={total} />
          <Cache total={total} />
          <Latency />
          <Responses now={now} total={total} />
          <Memory now={now} />
          <Requests />
          <Answers />
        </div>
      ) : null}
    </main>
  );
}
