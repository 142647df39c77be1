// Talking to the server: one streamed reply, and the model's name.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * Events of a reply: {progress: [done, total]} while the prompt is read, {chunk} for each chunk of /v1/chat/completions.
 * Throws Refused with the server's own sentence.
 */
export async function* reply(request, key, signal) {
  const answer = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...keyed(key) },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!answer.ok) throw await refusal(answer);
  for await (const line of lines(answer.body)) {
    if (line.startsWith(": prefill ")) {
      const [done, total] = line.match(/\d+/g).map(Number);
      yield { progress: [done, total] };
    }
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const chunk = JSON.parse(line.slice(6));
    if (chunk.error) throw new Refused(chunk.error.message, 500);
    yield { chunk };
  }
}

export async function model(key) {
  const answer = await fetch("/v1/models", { headers: keyed(key) });
  if (!answer.ok) throw await refusal(answer);
  return (await answer.json()).data[0];
}

function keyed(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function refusal(answer) {
  const said = await answer.json().catch(() => null);
  return new Refused(said?.error?.message ?? `the server answered ${answer.status}`, answer.status);
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
