// The page: chats at the side, a conversation, and how each reply was made.

import { chats, drop, newChat, save, settings, titleOf } from "./chats.js";
import { copyText, element, render } from "./markdown.js";
import { model, reply } from "./reply.js";

const at = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const numbered = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const rounded = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

let chat = chats[0] ?? newChat();
let running = null; // the AbortController of the reply that is being written
let key = "";

// ---- the conversation ----

function show() {
  const view = at("messages");
  view.replaceChildren();
  if (!chat.messages.length) {
    const welcome = element("div");
    welcome.className = "welcome";
    welcome.append(element("h1", "What shall we write?"), element("p", "Everything stays on this machine."));
    view.append(welcome);
  }
  for (const message of chat.messages) view.append(turn(message));
  showChats();
  const last = chat.messages.findLast((message) => message.numbers);
  showNumbers(last?.numbers, last);
  view.scrollTop = view.scrollHeight;
}

function turn(message) {
  const made = element("article");
  made.className = `turn ${message.role}`;
  made.message = message;
  update(made);
  return made;
}

/** Show what a message holds by now; the nodes that stay are kept. */
function update(made) {
  const { message } = made;
  if (message.role === "user") {
    const text = element("div", message.content);
    text.className = "text";
    made.replaceChildren(text, tools(made));
    return;
  }
  if (!made.body) {
    made.thinking = element("details");
    made.thinking.className = "thinking";
    made.thinking.append(element("summary", "Thinking"), element("div"));
    made.body = element("div");
    made.note = element("div");
    made.replaceChildren(made.thinking, made.body, made.note, tools(made));
  }
  made.thinking.hidden = !message.thinking;
  made.thinking.lastChild.textContent = message.thinking ?? "";
  made.thinking.firstChild.textContent = message.content || message.numbers ? "Thought" : "Thinking…";
  showBody(made);
  made.note.className = message.problem ? "problem" : "waiting";
  made.note.textContent = message.problem ?? (message.waiting && !message.content && !message.thinking ? message.waiting : "");
  made.note.hidden = !made.note.textContent;
  made.lastChild.replaceWith(tools(made));
}

function showBody(made) {
  const { message, body } = made;
  const tinted = at("tint").checked && message.runs;
  if (tinted !== body.tinted) {
    body.replaceChildren();
    body.shown = [];
    body.tinted = tinted;
  }
  body.className = tinted ? "body raw" : "body";
  if (!tinted) return render(body, message.content);
  const characters = [...message.content];
  let from = 0;
  const parts = message.runs.map(([length, drafted]) => {
    const text = characters.slice(from, (from += length)).join("");
    return drafted ? element("mark", text) : text;
  });
  body.replaceChildren(...parts, characters.slice(from).join(""));
}

function tools(made) {
  const { message } = made;
  const bar = element("div");
  bar.className = "tools";
  if (message.waiting) return bar;
  bar.append(button("Copy", (each) => copyText(each, message.content)));
  if (message.role === "user") {
    bar.append(button("Edit", () => edit(made)));
  } else {
    bar.append(button(message.problem ? "Try again" : "Regenerate", () => again(message)));
    if (message.numbers) bar.append(numbersOf(message));
  }
  return bar;
}

function numbersOf({ numbers }) {
  const speed = numbers.decode_tps ? `${rounded.format(numbers.decode_tps)} tok/s` : "stopped";
  const made = element("span", speed);
  made.className = "numbers";
  made.title = numbers.speculation ? `Speculation: ${numbers.speculation}` : "";
  return made;
}

function button(text, act) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", () => act(made));
  return made;
}

function edit(made) {
  if (running) return;
  const field = element("textarea");
  field.value = made.message.content;
  field.rows = Math.min(12, field.value.split("\n").length + 1);
  field.setAttribute("aria-label", "Edit your message");
  const go = () => ask(field.value, chat.messages.indexOf(made.message));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      go();
    }
    if (event.key === "Escape") update(made);
  });
  const bar = element("div");
  bar.className = "tools";
  bar.append(button("Send", go), button("Cancel", () => update(made)));
  made.replaceChildren(field, bar);
  field.focus();
}

// ---- a reply ----

/** Say `text` at `place` of the conversation; what stands there and behind it goes. */
function ask(text, place = chat.messages.length) {
  if (running || !text.trim()) return;
  chat.messages.splice(place);
  if (!chat.messages.length) chat.title = titleOf(text);
  chat.messages.push({ role: "user", content: text });
  answer();
}

function again(message) {
  if (running) return;
  chat.messages.splice(chat.messages.indexOf(message));
  answer();
}

function request() {
  const system = settings.system?.trim() ? [{ role: "system", content: settings.system }] : [];
  const said = chat.messages.filter((message) => !message.problem || message.content).map(({ role, content, thinking }) => ({
    role,
    content,
    ...(thinking ? { reasoning_content: thinking } : {}),
  }));
  const made = { messages: [...system, ...said], splashlite: { drafts: true, speculative: settings.speculative !== "false" } };
  for (const name of NUMBERS) if (Number.isFinite(settings[name])) made[name] = settings[name];
  if (settings.reasoning_effort) made.reasoning_effort = settings.reasoning_effort;
  return made;
}

async function answer() {
  const asked = request();
  const written = chat;
  const message = { role: "assistant", content: "", waiting: "Waiting" };
  chat.messages.push(message);
  show();
  running = new AbortController();
  showRunning();
  const made = at("messages").lastChild;
  let due = null;
  const soon = () => {
    due ??= requestAnimationFrame(() => {
      due = null;
      if (chat === written) keepAtEnd(() => update(made));
    });
  };
  try {
    for await (const { progress, chunk } of reply(asked, key, running.signal)) {
      if (progress) message.waiting = reading(progress);
      if (chunk) take(message, chunk, written);
      soon();
    }
  } catch (error) {
    if (error.name !== "AbortError") message.problem = `${error.message}.`;
    if (error.status === 401) at("settings").showModal();
  }
  delete message.waiting;
  message.numbers ??= {};
  running = null;
  cancelAnimationFrame(due);
  if (chat === written) keepAtEnd(() => update(made));
  showRunning();
  save();
}

function reading([done, total]) {
  return done < total ? `Reading the prompt, ${numbered.format(done)} of ${numbered.format(total)} tokens` : "Thinking it over";
}

function take(message, chunk, written) {
  const choice = chunk.choices[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) message.thinking = (message.thinking ?? "") + delta.reasoning_content;
  if (delta.content) {
    message.content += delta.content;
    (message.runs ??= []).push(...(chunk.splashlite?.drafts ?? []));
  }
  const numbers = chunk.splashlite;
  if (!numbers) return;
  if (choice?.finish_reason) message.numbers = numbers;
  if (choice?.finish_reason === "length") message.problem = "The reply was cut off: it reached its longest length or the end of the context.";
  if (chat === written) showNumbers(numbers, message);
}

function showNumbers(numbers, message) {
  const has = (value) => value !== undefined && value !== null;
  at("speed").textContent = numbers?.decode_tps ? rounded.format(numbers.decode_tps) : "–";
  at("acceptance").textContent = numbers?.acceptance_length ? numbered.format(numbers.acceptance_length) : "–";
  if (!numbers || has(numbers.cached_tokens)) at("cached").textContent = has(numbers?.cached_tokens) ? numbered.format(numbers.cached_tokens) : "–";
  const [all, drafted] = (message?.runs ?? []).reduce(([a, d], [length, is]) => [a + length, d + length * is], [0, 0]);
  at("drafted").textContent = all ? `${Math.round((100 * drafted) / all)}%` : "–";
  const state = numbers?.speculation;
  at("speculation").textContent = state && state !== "on" ? `Speculation ${state}` : "";
  at("speculation").title = at("speculation").textContent;
}

function showRunning() {
  at("stop").hidden = !running;
  at("send").hidden = Boolean(running);
}

/** Follow the end of the conversation while the reader is there, and stay where they are otherwise. */
function keepAtEnd(change) {
  const view = at("messages");
  const follows = view.scrollHeight - view.scrollTop - view.clientHeight < 60;
  change();
  if (follows) view.scrollTop = view.scrollHeight;
}

// ---- chats, settings, keys ----

function showChats() {
  const items = chats.map((each) => {
    const item = element("li");
    item.className = each === chat ? "current" : "";
    const open = button(each.title, () => select(each));
    open.className = "open";
    if (each === chat) open.setAttribute("aria-current", "true");
    const remove = button("✕", () => forget(each));
    remove.className = "delete";
    remove.setAttribute("aria-label", `Delete ${each.title}`);
    item.append(open, remove);
    return item;
  });
  at("chats").replaceChildren(...items);
}

function select(each) {
  running?.abort();
  chat = each;
  document.body.classList.remove("side-open");
  show();
  at("prompt").focus();
}

function forget(each) {
  if (!confirm(`Delete "${each.title}"?`)) return;
  if (each === chat) running?.abort();
  drop(each);
  if (each === chat) chat = chats[0] ?? newChat();
  show();
}

function startNew() {
  select(chats.find((each) => !each.messages.length) ?? newChat());
}

function readSettings() {
  settings.system = at("system").value;
  for (const name of NUMBERS) settings[name] = at(name).value === "" ? null : at(name).valueAsNumber;
  settings.reasoning_effort = at("reasoning_effort").value;
  settings.speculative = at("speculative").value;
  key = at("key").value;
  save();
  nameModel();
}

function writeSettings() {
  for (const name of ["system", ...NUMBERS, "reasoning_effort"]) at(name).value = settings[name] ?? "";
  at("speculative").value = settings.speculative ?? "true";
  at("tint").checked = Boolean(settings.tint);
}

function useTheme() {
  const dark = settings.theme ? settings.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

async function nameModel() {
  const view = at("model");
  try {
    const { id, drafter, context_length } = await model(key);
    const rest = `${drafter ? ` with ${drafter}` : ", no drafter"} · ${numbered.format(context_length)} tokens of context`;
    view.replaceChildren(element("b", id), rest);
  } catch (error) {
    view.textContent = error.message;
    if (error.status === 401) at("settings").showModal();
    else setTimeout(nameModel, 2000);
  }
}

function fit() {
  const field = at("prompt");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return;
  const text = at("prompt").value;
  at("prompt").value = "";
  fit();
  ask(text);
});
at("prompt").addEventListener("input", fit);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("composer").requestSubmit();
  }
});
at("stop").addEventListener("click", () => running?.abort());
at("new").addEventListener("click", startNew);
at("theme").addEventListener("click", () => {
  settings.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  save();
  useTheme();
});
at("tint").addEventListener("change", () => {
  settings.tint = at("tint").checked;
  save();
  for (const made of at("messages").children) if (made.message) update(made);
});
at("open-settings").addEventListener("click", () => at("settings").showModal());
at("settings").addEventListener("close", readSettings);
at("open-side").addEventListener("click", () => document.body.classList.add("side-open"));
for (const id of ["close-side", "veil"]) at(id).addEventListener("click", () => document.body.classList.remove("side-open"));
document.addEventListener("keydown", (event) => {
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && running && !at("settings").open) running.abort();
  if (command && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    startNew();
  }
  if (command && event.key === ",") {
    event.preventDefault();
    at("settings").showModal();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", useTheme);

useTheme();
writeSettings();
show();
showRunning();
nameModel();
at("prompt").focus();
