// Pictures of every screen of a running server, dark, light and on a phone: node shots.mjs URL FOLDER [QUESTION]
import { join } from "node:path";
import { browser, answers, say, settled, tab } from "./tests/site.mjs";

const [url, folder, question = "Write a Rust function that sums a slice of f32 in pairs. Why is that more exact? Answer briefly."] = process.argv.slice(2);
const chromium = await browser();
const looks = { light: { colorScheme: "light" }, dark: { colorScheme: "dark" }, phone: { colorScheme: "light", viewport: { width: 390, height: 844 } } };
let state;
for (const [look, options] of Object.entries(looks)) {
  const { page, context } = await tab(chromium, url, { ...options, storageState: state });
  const shoot = async (name) => page.screenshot({ path: join(folder, `${name}-${look}.png`) });
  page.setDefaultTimeout(300_000);
  if (!state) {
    await say(page, question);
    await answers(page).waitFor();
    await settled(page, 1);
    state = await context.storageState({ indexedDB: true });
  } else {
    if (look === "phone") await page.getByRole("button", { name: "Chats" }).click();
    await page.locator(".chats a").first().click();
    await page.waitForTimeout(800);
  }
  await page.locator(".scroll").evaluate((box) => (box.scrollTop = 0));
  await shoot("chat");
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  await shoot("settings");
  await page.getByRole("button", { name: "Close settings" }).click();
  await page.getByRole("button", { name: "Two models side by side" }).click();
  await shoot("two");
  await page.getByRole("button", { name: "One model" }).click();
  await page.getByRole("link", { name: "Live" }).click();
  await page.waitForTimeout(2500);
  await shoot("live");
  await page.getByRole("link", { name: "Models" }).click();
  await page.waitForTimeout(1500);
  await shoot("models");
  await context.close();
}
await chromium.close();
