// Chats and settings, kept in this browser. The key never is.

const CHATS = "splashlite.chats";
const SETTINGS = "splashlite.settings";
const MOST = 50;

/** A chat is {id, title, messages}; a message {role, content, thinking?, runs?, numbers?, problem?}. Newest first. */
export const chats = read(CHATS, []);
export const settings = read(SETTINGS, {});

export function newChat() {
  const chat = { id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), title: "New chat", messages: [] };
  chats.unshift(chat);
  return chat;
}

export function drop(chat) {
  chats.splice(chats.indexOf(chat), 1);
  save();
}

/** Keep everything that fits; when the browser's space is full the oldest chats go. */
export function save() {
  const kept = chats.filter((chat) => chat.messages.length).slice(0, MOST);
  for (;;) {
    try {
      localStorage.setItem(CHATS, JSON.stringify(kept));
      localStorage.setItem(SETTINGS, JSON.stringify(settings));
      return;
    } catch {
      if (kept.length < 2) return;
      kept.pop();
    }
  }
}

/** A title from the first message. */
export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 40 ? `${line.slice(0, 40)}…` : line || "New chat";
}

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}
