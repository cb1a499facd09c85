// What checks.py asks, by the official Node client. Prints what came as JSON.
import OpenAI, { toFile } from "openai";

const [baseURL, apiKey, oneAtATime] = process.argv.slice(2);
const sum = [{ role: "user", content: "What is 17 + 25?" }];
const weather = [{ role: "user", content: "What is the weather in Paris?" }];
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const timer = {
  type: "object",
  properties: { minutes: { type: "integer", minimum: 0, maximum: 99 } },
  required: ["minutes"],
  additionalProperties: false,
};
const tooLong = [{ role: "user", content: "word ".repeat(5000) }];
const kinds = {
  authentication: OpenAI.AuthenticationError,
  bad_request: OpenAI.BadRequestError,
  not_found: OpenAI.NotFoundError,
  rate_limit: OpenAI.RateLimitError,
};

const connect = (key = apiKey, maxRetries = 0) => new OpenAI({ baseURL, apiKey: key, maxRetries });
const create = (fields, key, maxRetries) =>
  connect(key, maxRetries).chat.completions.create({ model: "large", temperature: 0, ...fields });
const respond = (fields) => connect().responses.create({ model: "large", temperature: 0, ...fields });

async function errorOf(fields, key, ask = create) {
  try {
    await ask(fields, key);
    return ["none"];
  } catch (error) {
    const found = Object.keys(kinds).filter((name) => error instanceof kinds[name]);
    return [...found, ...(error.code === "context_length_exceeded" ? ["window"] : [])].sort();
  }
}

const text = (made) => made.choices[0].message.content;
let streamed = "";
for await (const chunk of await create({ messages: sum, stream: true })) streamed += chunk.choices[0].delta.content ?? "";
const [call] = (await create({ messages: weather, tools: [tool] })).choices[0].message.tool_calls;
const scored = await create({ messages: sum, logprobs: true, top_logprobs: 2 });
const wanted = { type: "json_schema", json_schema: { name: "timer", schema: timer, strict: true } };
const shaped = JSON.parse(text(await create({ messages: weather, response_format: wanted, max_tokens: 50 })));
const errors = {
  wrong_key: await errorOf({ messages: sum }, "tg-wrong-key"),
  wrong_field: await errorOf({ messages: sum, top_p: 7 }),
  wrong_model: await errorOf({ messages: sum, model: "no-such-model" }),
  window: await errorOf({ messages: tooLong }),
};

let streamedResponse = "";
for await (const event of await respond({ input: sum, stream: true }))
  if (event.type === "response.output_text.delta") streamedResponse += event.delta;
const offered = [{ type: "function", strict: null, ...tool.function }];
const first = await respond({ input: weather, tools: offered });
const [asked] = first.output;
const output = '{"temperature": 15, "sky": "sunny"}';
const told = [{ type: "function_call_output", call_id: asked.call_id, output }];
const second = await respond({ input: told, tools: offered, previous_response_id: first.id });
const responseErrorOf = (fields) => errorOf({ input: sum, ...fields }, apiKey, respond);
const responseErrors = {
  wrong_field: await responseErrorOf({ top_p: 7 }),
  wrong_model: await responseErrorOf({ model: "no-such-model" }),
  wrong_previous: await responseErrorOf({ previous_response_id: "resp_0123456789abcdef0123456789abcdef" }),
  window: await responseErrorOf({ input: tooLong }),
};

// While a stream holds the only place, a request is refused with `retry-after`, and comes through by waiting.
const long = { messages: sum, stream: true, max_tokens: 500, n: 4, ignore_eos: true };
const held = (await create(long, oneAtATime))[Symbol.asyncIterator]();
await held.next();
const refused = await errorOf({ messages: sum }, oneAtATime);
const reading = (async () => {
  while (!(await held.next()).done);
})();
const retried = text(await create({ messages: sum }, oneAtATime, 50));
await reading;

// A line that is answered, one that is refused, and one that is no JSON.
const url = "/v1/chat/completions";
const lines = [
  { custom_id: "sum", method: "POST", url, body: { model: "large", temperature: 0, messages: sum } },
  { custom_id: "wrong", method: "POST", url, body: { model: "large", messages: sum, top_p: 7 } },
];
const content = Buffer.from([...lines.map((line) => JSON.stringify(line)), "{broken"].join("\n"));
const client = connect();
const file = await client.files.create({ file: await toFile(content, "lines.jsonl"), purpose: "batch" });
let batch = await client.batches.create({ input_file_id: file.id, endpoint: url, completion_window: "24h" });
for (const deadline = Date.now() + 120_000; !["completed", "failed", "expired", "cancelled"].includes(batch.status); ) {
  if (Date.now() > deadline) throw new Error(JSON.stringify(batch));
  await new Promise((wake) => setTimeout(wake, 200));
  batch = await client.batches.retrieve(batch.id);
}
const recordsOf = async (id) =>
  (await (await client.files.content(id)).text())
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
const answers = await recordsOf(batch.output_file_id);
const failures = await recordsOf(batch.error_file_id);

console.log(
  JSON.stringify({
    chat: text(await create({ messages: sum })),
    stream: streamed,
    tool: [call.function.name, JSON.parse(call.function.arguments)],
    logprobs: scored.choices[0].logprobs.content.length === scored.usage.completion_tokens,
    shaped: Object.keys(shaped),
    errors,
    response: (await respond({ input: sum })).output_text,
    response_stream: streamedResponse,
    response_tool: [[asked.name, JSON.parse(asked.arguments)], second.output_text],
    response_errors: responseErrors,
    refused,
    retried,
    batch: {
      status: batch.status,
      counts: [batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed],
      answers: Object.fromEntries(answers.map((each) => [each.custom_id, text(each.response.body)])),
      refused: failures.filter((each) => each.response).map((each) => each.custom_id),
      broken: failures.filter((each) => each.error).map((each) => each.error.line),
    },
  }),
);
