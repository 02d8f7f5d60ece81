// Drives a running server with Vercel's AI SDK (ai 7.0.173; @ai-sdk/openai 4.0.118, openai-compatible 3.0.92,
// anthropic 4.0.105): node ai_sdk_client.mjs http://127.0.0.1:8080
//
// Works with any model that has a chat template; ends with status 0 and "ok" when every check held.

import assert from "node:assert/strict";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateObject, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const base = process.argv[2].replace(/\/$/, "");
const baseURL = `${base}/v1`;
const { data } = await (await fetch(`${baseURL}/models`)).json();
const name = data[0].id;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "local", baseURL, includeUsage: true, supportsStructuredOutputs: true });
const anthropic = createAnthropic({ baseURL, apiKey: "none" });
const models = {
  "openai, responses": openai.responses(name),
  "openai, chat": openai.chat(name),
  "openai, completion": openai.completion(name),
  "openai-compatible": compatible(name),
  anthropic: anthropic(name),
};
const common = { instructions: "You are terse.", maxRetries: 0, maxOutputTokens: 256 };
const schema = z.object({ ok: z.boolean(), word: z.enum(["river", "sea"]) });
const lookup = tool({
  description: "Looks a word up",
  inputSchema: z.object({ word: z.enum(["river", "sea"]) }),
  execute: async () => "flowing water",
});

async function text(model) {
  const ask = { ...common, model, prompt: "Count: one, two,", maxOutputTokens: 16, temperature: 0 };
  const whole = await generateText(ask);
  assert.ok(["stop", "length"].includes(whole.finishReason), whole.finishReason);
  assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
  const stream = streamText({ ...ask, onError: ({ error }) => assert.fail(error) });
  let said = "";
  for await (const part of stream.textStream) said += part;
  assert.equal(said, whole.text);
  assert.equal(await stream.finishReason, whole.finishReason);
  assert.equal((await stream.usage).inputTokens, whole.usage.inputTokens);
}

async function object(model) {
  const ask = { ...common, model, prompt: "Is it so?" };
  const found = await generateObject({ ...ask, schema });
  schema.parse(found.object);
  const other = await generateText({ ...ask, output: Output.object({ schema }) });
  schema.parse(other.output);
}

async function tools(model) {
  const ask = { ...common, model, prompt: "What is a river?", tools: { lookup }, toolChoice: "required" };
  const whole = await generateText({ ...ask, stopWhen: isStepCount(2) });
  assert.equal(whole.steps.length, 2);
  assert.equal(whole.steps[0].finishReason, "tool-calls");
  assert.equal(whole.steps[0].toolResults[0].output, "flowing water");
  const stream = streamText({ ...ask, onError: ({ error }) => assert.fail(error) });
  const kinds = [];
  for await (const part of stream.fullStream) kinds.push(part.type);
  assert.ok(kinds.includes("tool-call") && kinds.includes("tool-result"), kinds.join());
  const told = [{ role: "user", content: ask.prompt }, ...(await stream.response).messages];
  const next = await generateText({ ...common, model, messages: told, tools: { lookup }, maxOutputTokens: 8 });
  assert.ok(next.usage.inputTokens > 0);
}

for (const [kind, model] of Object.entries(models)) {
  const checks = kind.endsWith("completion") ? [text] : [text, object, tools];
  for (const check of checks) {
    await check(model);
    console.log(`${kind}, ${check.name}: ok`);
  }
}
console.log("ok");
