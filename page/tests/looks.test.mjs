// Every screen in both colour schemes and at a phone's width: what axe finds, what sticks out, what the keyboard reaches.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { answers, browser, home, say, serve, set, settled, tab } from "./site.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PHONE = { width: 390, height: 844 };

let server;
let chromium;

before(async () => {
  server = await serve(home("user/alpha", "user/beta"));
  chromium = await browser();
});
after(async () => {
  await chromium?.close();
  server?.stop();
});

async function audit(page, what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  const told = serious.map((one) => `${what}: ${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`);
  assert.deepEqual(told, []);
}

async function fits(page, what) {
  const [wide, has] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide <= has, `${what}: ${wide} wide in ${has}`);
}

for (const colorScheme of ["light", "dark"]) {
  for (const viewport of [{ width: 1280, height: 800 }, PHONE]) {
    test(`nothing serious is found, ${colorScheme}, ${viewport.width} wide`, async () => {
      const { page, context, check } = await tab(chromium, server.url, { colorScheme, viewport });
      await audit(page, "empty chat");
      await set(page, "Most tokens", "30");
      await audit(page, "settings");
      await page.getByRole("button", { name: "Close settings" }).click();
      await say(page, "Hello");
      await settled(page, 1);
      await audit(page, "chat");
      await fits(page, "chat");
      await page.getByRole("button", { name: "Two models side by side" }).click();
      await audit(page, "two models");
      await fits(page, "two models");
      await page.keyboard.press("Control+/");
      await audit(page, "keys");
      await page.keyboard.press("Escape");
      await page.keyboard.press("Control+k");
      await audit(page, "chats");
      for (const [name, there] of [["Live", ".cards"], ["Models", ".model"]]) {
        await page.keyboard.press("Escape");
        await page.getByRole("link", { name, exact: true }).click();
        await page.locator(there).first().waitFor();
        await page.waitForTimeout(300);
        await audit(page, name);
        await fits(page, name);
      }
      check();
      await context.close();
    });
  }
}

/** Presses Tab until that has the keyboard. */
async function reach(page, what) {
  for (let presses = 0; presses < 80; presses += 1) {
    await page.keyboard.press("Tab");
    if (await what.evaluate((element) => element === document.activeElement)) return;
  }
  assert.fail(`the keyboard does not reach ${what}`);
}

test("everything is done by keyboard alone", async () => {
  const { page, context, check } = await tab(chromium, server.url);
  const button = (name) => page.getByRole("button", { name, exact: true });
  // What is said: the field has the keyboard from the start.
  await page.getByLabel("Message", { exact: true }).and(page.locator(":focus")).waitFor();
  await page.keyboard.press("Control+,");
  await reach(page, page.getByLabel("Most tokens"));
  await page.keyboard.type("8");
  await reach(page, page.getByLabel("Message", { exact: true }));
  await page.keyboard.type("By keys alone");
  await page.keyboard.press("Enter");
  await settled(page, 1);
  await page.keyboard.press("Control+,");
  await reach(page, button("Regenerate"));
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("article.assistant .versions")?.textContent?.includes("2/2"));
  await settled(page, 1);
  await reach(page, button("Previous version"));
  await page.keyboard.press("Enter");
  assert.equal(await answers(page).locator(".versions > span").textContent(), "1/2");
  await reach(page, button("Edit"));
  await page.keyboard.press("Space");
  await page.getByLabel("Edit the message").and(page.locator(":focus")).waitFor();
  await page.keyboard.type(" and more");
  await page.keyboard.press("Enter");
  await settled(page, 1);
  assert.match(await page.locator(".said").textContent(), /and more/);
  // Chats: found, deleted, brought back, begun.
  await page.keyboard.press("Control+k");
  await page.getByLabel("Search chats").and(page.locator(":focus")).waitFor();
  await page.keyboard.type("keys");
  await reach(page, page.getByRole("button", { name: /^Delete / }));
  await page.keyboard.press("Enter");
  assert.equal(await page.locator(".chats li").count(), 0);
  await reach(page, button("Undo"));
  await page.keyboard.press("Enter");
  assert.equal(await page.locator(".chats li").count(), 1);
  await page.keyboard.press("Control+Shift+O");
  assert.equal(await answers(page).count(), 0);
  // Models: loaded and unloaded.
  await reach(page, page.getByRole("link", { name: "Models" }));
  await page.keyboard.press("Enter");
  await page.locator(".model").first().waitFor();
  const beta = page.locator(".model", { has: page.getByRole("heading", { name: "user/beta" }) });
  await reach(page, button("Load user/beta"));
  await page.keyboard.press("Enter");
  await beta.locator(".state.loaded").waitFor();
  await reach(page, button("Unload user/beta"));
  await page.keyboard.press("Enter");
  await beta.getByText("unloaded", { exact: true }).waitFor();
  check();
  await context.close();
});
