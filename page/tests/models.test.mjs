// Models in a browser: here, planned, pulled from a registry on loopback, loaded, pinned, unloaded; and the live figures.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browser, home, registry, serve, tab } from "./site.mjs";

let hub;
let server;
let chromium;

before(async () => {
  hub = await registry();
  server = await serve(home("user/alpha", "user/beta"), [], { HF_ENDPOINT: hub.url });
  chromium = await browser();
});
after(async () => {
  await chromium?.close();
  server?.stop();
  hub?.close();
});

const row = (page, name) => page.locator(".model", { has: page.getByRole("heading", { name, exact: true }) });

test("a model is loaded, pinned, let go of and unloaded", async () => {
  const { page, context, check } = await tab(chromium, server.url);
  await page.getByRole("link", { name: "Models" }).click();
  const alpha = row(page, "user/alpha");
  await alpha.getByText("unloaded", { exact: true }).waitFor();
  await alpha.getByRole("button", { name: "Load user/alpha" }).click();
  await alpha.locator(".state.loaded").waitFor();
  assert.match(await alpha.textContent(), /in memory/);
  await alpha.getByRole("button", { name: "Pin user/alpha" }).click();
  await alpha.getByRole("button", { name: "Unpin user/alpha" }).waitFor();
  assert.match(await alpha.textContent(), /pinned/);
  await alpha.getByRole("button", { name: "Unpin user/alpha" }).click();
  await alpha.getByRole("button", { name: "Pin user/alpha" }).waitFor();
  await alpha.getByRole("button", { name: "Unload user/alpha" }).click();
  await alpha.getByText("unloaded", { exact: true }).waitFor();
  check();
  await context.close();
});

test("what fits is told before it is fetched, with the reason", async () => {
  const { page, context, check } = await tab(chromium, server.url);
  await page.goto(`${server.url}/#/models`);
  const small = row(page, "smollm2");
  assert.match(await small.textContent(), /about [\d.,]+ tok\/s/);
  await page.getByLabel("Name of a model").fill("nobody/knows:it");
  await page.getByRole("button", { name: "Does it fit?" }).click();
  await page.getByText("Nothing is known of it before").waitFor();
  await page.getByLabel("Name of a model").fill("user/alpha");
  await page.getByRole("button", { name: "Does it fit?" }).click();
  const plan = page.getByRole("list", { name: "Plan of user/alpha" });
  await plan.getByText("fits", { exact: true }).waitFor();
  check();
  await context.close();
});

test("a pull tells how far it is, then the model answers; one that fails says why", async () => {
  const { page, context, check } = await tab(chromium, server.url);
  await page.goto(`${server.url}/#/models`);
  await page.getByLabel("Name of a model").fill("hf.co/user/gamma");
  await page.getByRole("button", { name: "Pull", exact: true }).click();
  const pull = page.locator(".pull");
  await pull.getByText(/\d kB of [\d.]+ kB/).waitFor();
  const seen = new Set();
  while (await pull.locator("progress").count()) {
    const value = await pull.locator("progress").getAttribute("value", { timeout: 1000 }).catch(() => null);
    if (value) seen.add(value);
    await page.waitForTimeout(50);
  }
  assert.ok(seen.size > 1, `progress ${[...seen]}`);
  await pull.getByText("It is here.").waitFor();
  const gamma = row(page, "user/gamma");
  await gamma.getByRole("button", { name: "Load user/gamma" }).click();
  await gamma.locator(".state.loaded").waitFor();
  await page.getByLabel("Name of a model").fill("hf.co/user/nothing");
  await page.getByRole("button", { name: "Pull", exact: true }).click();
  await page.locator(".pull .bad").waitFor();
  check();
  await context.close();
});

test("the live figures move while requests run", async () => {
  const { page, context, check } = await tab(chromium, server.url);
  await page.goto(`${server.url}/#/live`);
  const card = page.getByRole("region", { name: "Tokens", exact: true });
  await card.waitFor();
  const total = async () => Number((await card.locator("dd").nth(1).textContent()).replaceAll(",", ""));
  const before = await total();
  const body = JSON.stringify({ model: "user/beta", messages: [{ role: "user", content: "more" }], max_tokens: 2000, ignore_eos: true });
  const ask = () => fetch(`${server.url}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body }).then((r) => r.json());
  const load = Promise.all([ask(), ask(), ask()]);
  await page.waitForFunction(() => Number.parseFloat(document.querySelector('[aria-label="Tokens"] .value').textContent) > 0);
  await load;
  await page.waitForFunction(
    ([least]) => Number(document.querySelectorAll('[aria-label="Tokens"] dd')[1].textContent.replaceAll(",", "")) >= least,
    [before + 6000],
  );
  await page.getByRole("heading", { name: "user/beta" }).waitFor();
  assert.match(await page.getByRole("region", { name: "Memory by model" }).textContent(), /weights.*Blocks of keys and values/s);
  // A rate is a line from the third reading on, and a fast machine is done with the requests before it.
  await page.waitForFunction(() => document.querySelectorAll(".lines polyline").length >= 4);
  check();
  await context.close();
});
