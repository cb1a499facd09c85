// The official Node client: parse, stream and runTools with zod models. Prints what it got as JSON.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = "large";
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const parameters = z.object({ city: z.string() });
const called = [];
const weather = zodFunction({
  name: "get_weather",
  description: "Get the weather in a city",
  parameters,
  function: ({ city }) => {
    called.push(city);
    return `{"temperature": ${city.length + 10}, "sky": "sunny"}`;
  },
});

const parsed = await client.chat.completions.parse({ model, messages, tools: [weather], temperature: 0 });
const forced = await client.chat.completions
  .stream({ model, messages, tools: [weather], tool_choice: "required", temperature: 0 })
  .finalChatCompletion();
const runner = client.chat.completions.runTools({ model, messages, tools: [weather], temperature: 0 });
const answer = await runner.finalContent();
const streaming = client.chat.completions.runTools({ model, messages, tools: [weather], temperature: 0, stream: true });
const streamedAnswer = await streaming.finalContent();

const Timer = z.object({ minutes: z.number().int().min(0).max(99) });
const form = { model, messages, response_format: zodResponseFormat(Timer, "timer"), max_tokens: 50 };
const shaped = await client.chat.completions.parse(form);
const streamed = await client.chat.completions.stream(form).finalChatCompletion();

console.log(
  JSON.stringify({
    parsed: parsed.choices[0].message.tool_calls[0].function.parsed_arguments,
    forced: forced.choices[0].message.tool_calls[0].function.parsed_arguments,
    answer,
    streamedAnswer,
    called,
    shaped: Timer.safeParse(shaped.choices[0].message.parsed).success,
    streamed: Timer.safeParse(streamed.choices[0].message.parsed).success,
  }),
);
