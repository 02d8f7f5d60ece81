// The page of a server with keys: it asks, keeps the key in its tab, and shows nothing without.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answers, browser, home, say, serve, set, settled, tab } from "./site.mjs";

let server;
let chromium;

before(async () => {
  server = await serve(home("user/alpha"), [], { TOKENMILL_API_KEY: "right-key" });
  chromium = await browser();
});
after(async () => {
  await chromium?.close();
  server?.stop();
});

test("the key is asked for, checked, and stays in the tab", async () => {
  const { page, context, check } = await tab(chromium, server.url);
  const dialog = page.getByRole("dialog", { name: "This server asks for a key" });
  await dialog.waitFor();
  await dialog.getByLabel("Key").fill("wrong-key");
  await page.keyboard.press("Enter");
  await dialog.getByText("does not take this key").waitFor();
  await dialog.getByLabel("Key").fill("right-key");
  await page.keyboard.press("Enter");
  await dialog.waitFor({ state: "detached" });
  await set(page, "Most tokens", "4");
  await say(page, "Hello");
  await settled(page, 1);
  assert.equal(await answers(page).locator(".bad").count(), 0);
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, document.cookie, location.href]));
  assert.ok(!kept.includes("right-key"), kept);
  await page.reload();
  await answers(page).waitFor();
  assert.equal(await dialog.count(), 0);
  const other = await context.newPage();
  await other.goto(`${server.url}/`);
  await other.getByRole("dialog", { name: "This server asks for a key" }).waitFor();
  check();
  await context.close();
});
