// Markdown to DOM nodes. Text only ever becomes text nodes: nothing that a model writes is read as HTML, and nothing is loaded.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const DEEPEST = 8;

/** Make `into` show `text`. Called again with a longer text it keeps the blocks that did not change. */
export function render(into, text) {
  const wanted = blocks(text.split("\n"));
  const shown = (into.shown ??= []);
  let same = 0;
  while (same < shown.length && same < wanted.length && shown[same] === wanted[same].join("\n")) same += 1;
  while (into.childNodes.length > same) into.lastChild.remove();
  for (const lines of wanted.slice(same)) into.append(block(lines, 0));
  into.shown = wanted.map((lines) => lines.join("\n"));
}

/** Groups of lines, each of which is one block. */
function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const end = blockEnd(lines, at);
    found.push(lines.slice(at, end));
    at = end;
  }
  return found;
}

function blockEnd(lines, at) {
  const fence = lines[at].match(FENCE);
  if (fence) {
    const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
    const end = lines.findIndex((line, i) => i > at && closing.test(line));
    return end < 0 ? lines.length : end + 1;
  }
  if (/^#{1,6}\s/.test(lines[at]) || RULE.test(lines[at])) return at + 1;
  let end = at + 1;
  if (ITEM.test(lines[at])) {
    while (end < lines.length && (!startsOther(lines, end) || /^\s{2,}\S/.test(lines[end]))) end += 1;
    while (!lines[end - 1].trim()) end -= 1;
    return end;
  }
  const quote = lines[at].startsWith(">");
  while (end < lines.length && lines[end].trim() && (quote ? lines[end].startsWith(">") : !starts(lines[end]))) end += 1;
  return end;
}

/** Whether a line ends a list: text at the margin behind an empty line, or another kind of block. */
function startsOther(lines, at) {
  const line = lines[at];
  if (!line.trim() || ITEM.test(line)) return false;
  return !lines[at - 1].trim() || starts(line);
}

function starts(line) {
  return FENCE.test(line) || /^#{1,6}\s/.test(line) || RULE.test(line) || ITEM.test(line) || line.startsWith(">");
}

function block(lines, depth) {
  const [first] = lines;
  const fence = first.match(FENCE);
  if (fence) return code(lines, fence);
  const heading = first.match(/^(#{1,6})\s+(.*?)\s*#*\s*$/);
  if (heading) return withInline(`h${heading[1].length}`, heading[2]);
  if (RULE.test(first)) return element("hr");
  if (depth < DEEPEST && first.startsWith(">")) return nested("blockquote", lines.map((line) => line.replace(/^>\s?/, "")), depth);
  if (depth < DEEPEST && ITEM.test(first)) return list(lines, depth);
  if (lines.length > 1 && first.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[1])) return table(lines);
  return withInline("p", lines.join("\n"));
}

function code(lines, fence) {
  const closed = lines.length > 1 && new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`).test(lines.at(-1));
  const source = lines.slice(1, closed ? -1 : undefined).join("\n");
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.addEventListener("click", () => copyText(copy, source));
  const head = element("div");
  head.append(element("span", fence[2] || "text"), copy);
  const pre = element("pre");
  pre.append(element("code", source));
  const box = element("div");
  box.className = "code";
  box.append(head, pre);
  return box;
}

function list(lines, depth) {
  const [, indent, mark] = lines[0].match(ITEM);
  const items = [];
  for (const line of lines) {
    const item = line.match(ITEM);
    if (item && item[1].length <= indent.length + 1) items.push({ width: line.length - item[4].length, lines: [item[4]] });
    else items.at(-1).lines.push(line.slice(Math.min(items.at(-1).width, line.search(/\S|$/))));
  }
  const made = element(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) made.start = parseInt(mark, 10);
  for (const { lines: content } of items) {
    const parts = blocks(content).map((each) => block(each, depth + 1));
    const li = element("li");
    li.append(...(parts.length === 1 && parts[0].tagName === "P" ? parts[0].childNodes : parts));
    made.append(li);
  }
  return made;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const made = element("table");
  for (const [row, line] of lines.entries()) {
    if (row === 1) continue;
    const tr = element("tr");
    tr.append(...cells(line).map((cell) => withInline(row === 0 ? "th" : "td", cell)));
    made.append(tr);
  }
  const box = element("div");
  box.className = "table";
  box.append(made);
  return box;
}

function nested(tag, lines, depth) {
  const made = element(tag);
  made.append(...blocks(lines).map((each) => block(each, depth + 1)));
  return made;
}

function withInline(tag, text) {
  const made = element(tag);
  inline(made, text, 0);
  return made;
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

/** Inline marks, in one pass: a mark that is not closed anywhere is looked for once only. */
function inline(into, text, depth) {
  const missing = new Set();
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) into.append(plain);
    plain = "";
  };
  const closing = (mark, from) => {
    if (missing.has(mark)) return -1;
    const end = text.indexOf(mark, from);
    if (end < 0) missing.add(mark);
    return end;
  };
  while (at < text.length) {
    const rest = text[at];
    if (rest === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    if (rest === "`") {
      let ticks = 1;
      while (text[at + ticks] === "`") ticks += 1;
      const end = closing("`".repeat(ticks), at + ticks);
      if (end > 0) {
        flush();
        into.append(element("code", text.slice(at + ticks, end).replace(/^ (.+) $/s, "$1")));
        at = end + ticks;
      } else {
        plain += text.slice(at, at + ticks);
        at += ticks;
      }
      continue;
    }
    if (rest === "h" && /^https?:\/\/[^\s<>"'`)\]]/.test(text.slice(at, at + 12)) && !/\w/.test(text[at - 1] ?? "")) {
      const address = text.slice(at).match(/^\S[^\s<>"'`)\]]*/)[0].replace(/[.,;:!?*_]+$/, "");
      flush();
      into.append(link(address, address));
      at += address.length;
      continue;
    }
    if (rest === "[" || (rest === "!" && text[at + 1] === "[")) {
      const open = rest === "!" ? at + 2 : at + 1;
      const middle = closing("](", open);
      const end = middle < 0 ? -1 : closing(")", middle);
      if (end > 0 && middle - open < 500 && !text.slice(open, middle).includes("\n")) {
        flush();
        into.append(link(text.slice(middle + 2, end).trim().split(/\s/)[0], text.slice(open, middle), depth));
        at = end + 1;
        continue;
      }
    }
    const mark = depth < DEEPEST && MARKS.find(([each]) => text.startsWith(each, at));
    if (mark && /\S/.test(text[at + mark[0].length] ?? " ") && !(mark[0][0] === "_" && /\w/.test(text[at - 1] ?? ""))) {
      const end = closing(mark[0], at + mark[0].length + 1);
      if (end > 0 && /\S/.test(text[end - 1]) && !(mark[0][0] === "_" && /\w/.test(text[end + mark[0].length] ?? ""))) {
        flush();
        const made = element(mark[1]);
        inline(made, text.slice(at + mark[0].length, end), depth + 1);
        into.append(made);
        at = end + mark[0].length;
        continue;
      }
    }
    plain += rest;
    at += 1;
  }
  flush();
}

/** A link to an address that is safe to follow, else its text. Pictures are links too: nothing is fetched unasked. */
function link(address, text, depth = DEEPEST) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return document.createTextNode(text);
  const made = element("a");
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  if (depth < DEEPEST) inline(made, text || address, DEEPEST);
  else made.textContent = text || address;
  return made;
}

export function element(tag, text) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Put text on the clipboard and say so on the button. */
export async function copyText(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = before), 1200);
}
