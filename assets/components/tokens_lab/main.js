/* The tokens lab: what a typed text is to the model. Tokens follow each key stroke, because the tokenizer runs here.
 *
 * The tokenizer is the list of merges (store.values: left id, right id of rank 0, 1, …; a third number, the result's id,
 * only where it is not first_id + rank). core/tokenizer.py is the original; a test in the browser holds both equal.
 *
 * DATA (built by pages/views/tokens_lab.py)
 * {
 *   typed, chat, token, merge,   the learner's settings: the text, inside the chat template or not, selected position
 *                                (-1: chosen here), position of the merge player
 *   seq,                         the number of the last message from here that these settings include. Python answers a
 *                                message with the data as they were, which cost nothing to send again: they are older
 *                                than what is on screen, and ignored
 *   parts,                       the chat template around the text: [{text, role: "template"|"system"|"user",
 *                                specials: [[id, start, stop]]}] | null where there is none that can be used
 *   table,                       key of the list of merges in the tokens store | null: the tokens come in `given`
 *   given,                       {typed, chat, n_tokens, n_yours, tokens: [[id, hex, special, yours]], words: [{hex, unknown,
 *                                special, ids, merges: [[boundary, rank]]}] | null} | null
 *   examples,                    [[label, text]]
 *   vocab_size, hidden_size, n_merges, lang,
 *   text: {…}                    the strings; see assets/text/en/tokens.toml, [lab]
 * }
 * Sends setStateValue("lab", {typed, chat, token, merge, seq}) when the learner pauses or decides. (The name "value" would
 * never arrive: Streamlit keeps it for itself.)
 */

// ---- the tokenizer ---------------------------------------------------------------------------------------------------

// White space as Unicode counts it; \s of JavaScript differs in two characters.
const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORD = new RegExp(`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]+`, "gu");
const UTF8_UNIT = /[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]?|\xe0(?:[\xa0-\xbf][\x80-\xbf]?)?|[\xe1-\xec\xee\xef](?:[\x80-\xbf]{1,2})?|\xed(?:[\x80-\x9f][\x80-\xbf]?)?|\xf0(?:[\x90-\xbf][\x80-\xbf]{0,2})?|[\xf1-\xf3](?:[\x80-\xbf]{1,3})?|\xf4(?:[\x80-\x8f][\x80-\xbf]{0,2})?|[\x80-\xff]/g;
const ENCODER = new TextEncoder(), DECODER = new TextDecoder("utf-8", { ignoreBOM: true });
const toHex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
const fromHex = (hex) => Uint8Array.from(hex.match(/../g) || [], (b) => parseInt(b, 16));
const join = (a, b) => { const both = new Uint8Array(a.length + b.length); both.set(a); both.set(b, a.length); return both; };

function makeTable({ values, meta }) {
  const width = meta.width, n = values.length / width, pairs = new Map(), result = (rank) => (width === 3 ? values[rank * 3 + 2] : meta.first_id + rank);
  for (let rank = 0; rank < n; rank++) pairs.set(values[rank * width] * 4194304 + values[rank * width + 1], rank);
  const rankOf = new Map();
  if (width === 3) for (let rank = 0; rank < n; rank++) rankOf.set(result(rank), rank);
  const known = new Map(meta.added.map(([id, text]) => [id, ENCODER.encode(text)]));
  meta.byte_ids.forEach((id, byte) => { if (id >= 0) known.set(id, Uint8Array.of(byte)); });
  const table = { n, byteIds: meta.byte_ids, added: meta.added, specials: new Set(meta.added.filter((x) => x[2]).map((x) => x[0])), words: new Map() };
  table.rank = (a, b) => pairs.get(a * 4194304 + b);
  table.result = result;
  table.pair = (rank) => [values[rank * width], values[rank * width + 1]];
  table.bytes = (id) => {
    const found = known.get(id);
    if (found) return found;
    const rank = width === 3 ? rankOf.get(id) : id - meta.first_id;
    if (rank === undefined || rank < 0 || rank >= n) return new Uint8Array();
    const [a, b] = table.pair(rank), made = join(table.bytes(a), table.bytes(b));
    known.set(id, made);
    return made;
  };
  table.split = { all: splitter(meta.added), plain: splitter(meta.added.filter((x) => !x[2])) };
  return table;
}

/** Finds added tokens in a text; of several that begin at the same place the longest. */
function splitter(added) {
  if (!added.length) return null;
  const ids = new Map(added.map(([id, text]) => [text, id]));
  const texts = [...ids.keys()].sort((a, b) => b.length - a.length).map((x) => x.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return { pattern: new RegExp(texts.join("|"), "g"), ids };
}

/** Whether any merge makes a token of two digits or more. */
function joinsDigits(table) {
  table.digits ??= Array.from({ length: table.n }, (_, rank) => rank).some((rank) => /^\d\d+$/.test(DECODER.decode(table.bytes(table.result(rank)))));
  return table.digits;
}

/** A binary heap of [rank, place, result]: the lowest rank first, then the leftmost place. */
class Heap {
  constructor() { this.items = []; }
  less(i, j) { const a = this.items[i], b = this.items[j]; return a[0] < b[0] || (a[0] === b[0] && a[1] < b[1]); }
  swap(i, j) { [this.items[i], this.items[j]] = [this.items[j], this.items[i]]; }
  push(item) {
    let i = this.items.push(item) - 1;
    for (let up; i > 0 && this.less(i, (up = (i - 1) >> 1)); i = up) this.swap(i, up);
  }
  pop() {
    const top = this.items[0], last = this.items.pop();
    if (this.items.length) this.items[0] = last;
    for (let i = 0; ; ) {
      let small = i;
      for (const j of [2 * i + 1, 2 * i + 2]) if (j < this.items.length && this.less(j, small)) small = j;
      if (small === i) return top;
      this.swap(i, small); i = small;
    }
  }
}

/** One pre-token's bytes to ids, with every merge: {ids, lengths, merges: [{at, rank}], kept, unknown}. */
function mergeWord(table, bytes) {
  const kept = Array.from(bytes).filter((b) => table.byteIds[b] >= 0), unknown = Array.from(bytes).filter((b) => table.byteIds[b] < 0);
  const ids = kept.map((b) => table.byteIds[b]), n = ids.length, left = ids.map((_, i) => i - 1), right = ids.map((_, i) => (i + 1 < n ? i + 1 : -1));
  const heap = new Heap(), merges = [];
  const offer = (a, b) => { if (a < 0 || b < 0) return; const rank = table.rank(ids[a], ids[b]); if (rank !== undefined) heap.push([rank, a, table.result(rank)]); };
  for (let i = 0; i + 1 < n; i++) offer(i, i + 1);
  while (heap.items.length) {
    const [, place, result] = heap.pop(), other = right[place];
    const rank = ids[place] >= 0 && other >= 0 ? table.rank(ids[place], ids[other]) : undefined;
    if (rank === undefined || table.result(rank) !== result) continue; // stale: a neighbour has changed meanwhile
    merges.push({ at: other, rank });
    ids[place] = result; ids[other] = -1; right[place] = right[other];
    if (right[other] >= 0) left[right[other]] = place;
    offer(left[place], place); offer(place, right[place]);
  }
  return { ids: ids.filter((id) => id >= 0), merges, kept: Uint8Array.from(kept), unknown };
}

/** Encodes a stretch of `full` from `from` to `to`. specials: written-out special tokens count as such. */
function encodeStretch(table, out, full, from, to, specials) {
  const split = specials ? table.split.all : table.split.plain, text = full.slice(from, to);
  let cursor = 0;
  for (const match of split ? text.matchAll(split.pattern) : []) {
    encodeWords(table, out, text.slice(cursor, match.index), from + cursor);
    addSpecial(table, out, split.ids.get(match[0]), from + match.index, from + match.index + match[0].length);
    cursor = match.index + match[0].length;
  }
  encodeWords(table, out, text.slice(cursor), from + cursor);
}

function addSpecial(table, out, id, start, stop) {
  out.words.push({ start, stop, special: true, ids: [id], merges: [], kept: table.bytes(id), unknown: [], first: out.tokens.length });
  out.tokens.push({ id, bytes: table.bytes(id), special: table.specials.has(id), start, stop });
}

function encodeWords(table, out, text, base) {
  for (const match of text.matchAll(WORD)) {
    let made = table.words.get(match[0]);
    if (!made) {
      made = mergeWord(table, ENCODER.encode(match[0]));
      if (table.words.size > 20000) table.words.clear();
      table.words.set(match[0], made);
    }
    const start = base + match.index, chars = charactersOfBytes(table, match[0], start);
    out.words.push({ ...made, start, stop: start + match[0].length, special: false, first: out.tokens.length });
    let at = 0;
    for (const id of made.ids) {
      const bytes = table.bytes(id);
      out.tokens.push({ id, bytes, special: false, start: chars[at][0], stop: chars[at + bytes.length - 1][1] });
      at += bytes.length;
    }
  }
}

/** For each byte that has a token: [start, stop] of the character it belongs to. */
function charactersOfBytes(table, word, base) {
  const spans = [];
  let at = base;
  for (const c of word) {
    for (const byte of ENCODER.encode(c)) if (table.byteIds[byte] >= 0) spans.push([at, at + c.length]);
    at += c.length;
  }
  return spans;
}

/** The whole prompt: {full, tokens, words, from, to}; from…to is the typed text in `full`. parts: null for raw text. */
function encodePrompt(table, typed, parts) {
  if (!parts) {
    const out = { full: typed, tokens: [], words: [], from: 0, to: typed.length };
    encodeStretch(table, out, typed, 0, typed.length, true);
    out.tokens.forEach((token) => { token.yours = true; });
    return out;
  }
  const out = { full: "", tokens: [], words: [], from: 0, to: 0 }, marks = [], spans = [];
  for (const part of parts) {
    const start = out.full.length, text = part.role === "user" ? typed : part.text;
    for (const [id, a, b] of part.specials) marks.push([id, start + codeUnits(text, a), start + codeUnits(text, b)]);
    out.full += text;
    if (part.role !== "template" && text) spans.push([start, out.full.length]);
    if (part.role === "user") { out.from = start; out.to = out.full.length; }
  }
  let cursor = 0;
  for (const [id, start, stop] of marks) {
    encodeStretch(table, out, out.full, cursor, start, false);
    addSpecial(table, out, id, start, stop);
    cursor = stop;
  }
  encodeStretch(table, out, out.full, cursor, out.full.length, false);
  out.tokens.forEach((token) => { token.yours = spans.some(([a, b]) => token.start < b && token.stop > a); });
  return out;
}

/** Python counts characters, JavaScript counts units of 16 bits. */
function codeUnits(text, characters) { return Array.from(text).slice(0, characters).join("").length; }

/** The same shape from tokens that Python made (a tokenizer that is no table, or not loaded yet). */
function fromGiven(given) {
  const tokens = given.tokens.map(([id, hex, special, yours]) => ({ id, bytes: fromHex(hex), special, yours, start: 0, stop: 0 }));
  let first = 0;
  const words = given.words && given.words.map((word) => {
    const made = { kept: fromHex(word.hex), unknown: Array.from(fromHex(word.unknown)), special: word.special, ids: word.ids, merges: word.merges.map(([at, rank]) => ({ at, rank })), first };
    first += word.ids.length;
    return made;
  });
  return { full: given.typed, tokens, words, from: 0, to: given.typed.length, nTokens: given.n_tokens, nYours: given.n_yours, given: true };
}

/** Ranges of tokens that form whole characters together. */
function characterGroups(tokens) {
  let data = "";
  const ends = tokens.map((token) => { data += String.fromCharCode(...token.bytes); return data.length; });
  const boundaries = new Set([data.length]);
  for (const match of data.matchAll(UTF8_UNIT)) boundaries.add(match.index);
  const groups = [];
  tokens.forEach((_, i) => { if (i && !boundaries.has(ends[i - 1])) groups[groups.length - 1].push(i); else groups.push([i]); });
  return groups;
}

/** A word's symbols when `n` of its merges are done: [{start, bytes}]. */
function symbolsAfter(word, n) {
  if (word.special || (!word.merges.length && word.ids.length === 1)) return [{ start: 0, bytes: word.kept }];
  const gone = new Set(word.merges.slice(0, n).map((merge) => merge.at)), symbols = [];
  for (let i = 0; i < word.kept.length; i++) if (gone.has(i)) symbols[symbols.length - 1].stop = i + 1; else symbols.push({ start: i, stop: i + 1 });
  return symbols.map(({ start, stop }) => ({ start, bytes: word.kept.slice(start, stop) }));
}

/** All merges of all words, walking down the list; equal ranks from left to right. [{word, index}] */
function playOrder(words) {
  const all = [];
  words.forEach((word, w) => { let high = -1; word.merges.forEach((merge, index) => { high = Math.max(high, merge.rank); all.push({ word: w, index, key: high }); }); });
  return all.sort((a, b) => a.key - b.key || a.word - b.word || a.index - b.index);
}

// ---- counting as people count ----------------------------------------------------------------------------------------

const segmenters = new Map();
function segments(text, granularity, lang) {
  if (!globalThis.Intl?.Segmenter) return granularity === "grapheme" ? Array.from(text) : text.split(/\s+/u).filter(Boolean);
  const key = granularity + lang;
  if (!segmenters.has(key)) segmenters.set(key, new Intl.Segmenter(lang, { granularity }));
  return Array.from(segmenters.get(key).segment(text)).filter((x) => granularity === "grapheme" || x.isWordLike).map((x) => x.segment);
}

function count(enc, typed, lang) {
  const points = Array.from(typed).length, long = typed.length > 20000;
  const tokens = enc.nTokens ?? enc.tokens.length, yours = enc.nYours ?? enc.tokens.filter((x) => x.yours).length;
  return {
    characters: long ? points : segments(typed, "grapheme", lang).length, points, bytes: ENCODER.encode(typed).length,
    words: long ? typed.split(/\s+/u).filter(Boolean).length : segments(typed, "word", lang).length, tokens, yours,
  };
}

// ---- the lab ---------------------------------------------------------------------------------------------------------

const MAX_CHIPS = 400, MAX_BYTES = 420; // drawn; all are counted
const textOf = (bytes) => DECODER.decode(bytes);
const shown = (token) => showToken(textOf(token.bytes), toHex(token.bytes), token);

function buildLab(root) {
  const q = (selector) => root.querySelector(selector);
  const s = { root, q, link: new Agreement(), auto: true, tables: new Map(), box: q("textarea") };
  s.player = new Player({ count: 0, position: 0, duration: () => Math.min(0.9, Math.max(0.12, 16 / (s.order?.length || 1))), onChange: (p, why) => { if (s.enc) drawMerges(s, why); } });
  s.tip = tooltip(q(".journey"));
  s.box.oninput = () => { s.auto = true; s.token = -1; s.merge = null; s.box.value.length > 5000 ? later(s, "typing", 150, () => read(s)) : read(s); later(s, "send", 900, () => send(s)); };
  s.box.onchange = () => { clearTimeout(s.timers?.send); send(s); };
  q(".strip").onkeydown = (event) => moveChoice(s, event);
  bindKeys(q(".merges"), s.player);
  bindRow(s);
  watch(root, () => { s.colours = null; if (s.enc) { drawRow(s); grow(s); } });
  listen(root, "otat-tokens", () => { if (s.data) { if (!s.table) read(s); else drawRow(s); } });
  return s;
}

function later(s, name, ms, fn) { s.timers ??= {}; clearTimeout(s.timers[name]); s.timers[name] = setTimeout(fn, ms); }

/** Tells Python, in one message with everything. */
function send(s) {
  const value = { typed: s.box.value, chat: s.chat, token: s.auto ? -1 : s.token, merge: s.player.position };
  if (!s.link.holds(value)) s.setStateValue("lab", s.link.number(value));
}

/** The text (or the mode) has changed: encode it and draw everything. */
function read(s) {
  const { data } = s, typed = s.box.value, stored = data.table && globalThis.otatTokens?.get(data.table);
  if (stored && !s.tables.has(data.table)) s.tables.set(data.table, makeTable(stored));
  s.table = stored ? s.tables.get(data.table) : null;
  const fits = data.given && data.given.typed === typed && data.given.chat === s.chat;
  if (s.table) s.enc = encodePrompt(s.table, typed, s.chat ? data.parts : null);
  else if (fits) s.enc = fromGiven(data.given);
  s.stale = !s.table && !fits;
  s.enc ??= { full: "", tokens: [], words: null, from: 0, to: 0 };
  s.counts = count(s.enc, typed, data.lang);
  if (s.auto || !(s.token < s.enc.tokens.length)) { s.auto = true; s.token = bestToken(s.enc.tokens); }
  grow(s); drawText(s); drawFigures(s); drawMyths(s); drawChips(s); drawJourney(s); setMerges(s);
}

/** The token worth a first look: the longest typed one. */
function bestToken(tokens) {
  let best = tokens.findIndex((x) => x.yours);
  tokens.slice(0, MAX_CHIPS).forEach((x, i) => { if (x.yours && !x.special && x.bytes.length > (tokens[best]?.bytes.length ?? 0)) best = i; });
  return Math.max(0, best);
}

function grow(s) { s.box.style.height = "auto"; s.box.style.height = Math.min(s.box.scrollHeight + 2, 12 * rem()) + "px"; }

function drawText(s) {
  const { text, data } = s;
  const modes = data.parts ? [[true, text.mode_chat], [false, text.mode_raw]] : [[false, text.mode_raw]];
  if (!data.parts) s.chat = false;
  s.q(".between .seg").replaceChildren(...modes.map(([chat, label]) => h("button", { type: "button", "aria-pressed": String(s.chat === chat), onclick: () => setMode(s, chat) }, label)));
  s.q(".mode").textContent = s.chat ? text.about_chat : data.parts ? text.about_raw : text.no_template;
  const say = s.stale ? text.waiting : sentence(s);
  if (s.q(".say").textContent !== say) s.q(".say").textContent = say;
}

function setMode(s, chat) {
  if (s.chat === chat) return;
  s.chat = chat; s.auto = true; s.merge = null;
  read(s); send(s);
  s.q(`.seg button[aria-pressed="true"]`)?.focus();
}

/** One sentence about this very text; the first that applies. */
function sentence(s) {
  const { text, enc, counts, f } = s, typed = s.box.value, yours = enc.tokens.filter((x) => x.yours), n = f.int;
  const added = counts.tokens - counts.yours, values = { words: several(s, "word", counts.words), characters: several(s, "character", counts.characters), tokens: several(s, "token", counts.tokens), yours: several(s, "token", counts.yours), added: n(added) };
  if (!typed) return s.chat ? t(text.say_empty_chat, values) : text.say_empty_raw;
  const unknown = (enc.words || []).flatMap((word) => word.unknown);
  if (unknown.length) return t(text.say_unknown, { n: n(unknown.length), bytes: unknown.slice(0, 4).map((b) => b.toString(16).toUpperCase().padStart(2, "0")).join(" ") });
  const special = s.table?.split.all && typed.match(new RegExp(s.table.split.all.pattern.source));
  if (special) return t(s.chat ? text.say_forged : text.say_special, { special: special[0], id: s.table.split.all.ids.get(special[0]) });
  const split = characterGroups(yours).filter((g) => g.length > 1);
  if (split.length) return t(split.length >= counts.points * 0.99 ? text.say_no_character : text.say_split, { ...values, parts: n(split.reduce((sum, g) => sum + g.length, 0)), points: n(counts.points) });
  const spaces = typed.length - typed.replace(/ +$/, "").length;
  if (spaces && typed.trim()) return t(text.say_spaces, { spaces: n(spaces) });
  const digits = (typed.match(/\p{N}/gu) || []).length;
  if (s.table && digits > 3 && !joinsDigits(s.table) && digits * 2 > counts.points && yours.filter((x) => /^\p{N}$/u.test(textOf(x.bytes))).length === digits) return t(text.say_digits, { digits: n(digits) });
  if (counts.words === 1 && counts.yours > 1) return t(text.say_one_word, { ...values, parts: yours.slice(0, 8).map((x) => "“" + textOf(x.bytes) + "”").join(" ") + (yours.length > 8 ? " …" : "") });
  if (s.chat && added) return t(text.say_chat, values);
  return t(counts.words === counts.tokens ? text.say_raw_equal : text.say_raw, values);
}

/** "1 word", "3 words": the noun with its number. */
function several(s, noun, n) { return t(s.text[n === 1 ? `one_${noun}` : `some_${noun}`], { n: s.f.int(n) }); }

function figureOf(s, value, label, kind = "computed") {
  return h("div", { class: "fig" }, h("b", {}, value), h("span", {}, label, h("em", { class: "kind" }, s.text[kind])));
}

function drawFigures(s) {
  const { text, counts, f } = s, added = counts.tokens - counts.yours;
  const figures = [
    [f.int(counts.characters), counts.points === counts.characters ? text.characters : t(text.characters_points, { n: f.int(counts.points) })],
    [f.int(counts.bytes), text.bytes], [f.int(counts.words), text.words],
    [f.int(counts.tokens), added ? t(text.tokens_split, { yours: f.int(counts.yours), added: f.int(added) }) : text.tokens],
  ];
  s.q(".write .figs").replaceChildren(...figures.map(([value, label], i) => figureOf(s, s.stale && i === 3 ? "…" : value, label)));
}

function setMyth(s, place, claim, answer) {
  const node = s.q(place + " .myth");
  node.hidden = !answer;
  if (answer) node.replaceChildren(h("span", { class: "tag" }, s.text.myth), h("p", {}, h("b", {}, claim), " ", answer));
}

function drawMyths(s) {
  const { text, counts, table } = s, word = "strawberry";
  const numbers = { words: several(s, "word", counts.words), characters: several(s, "character", counts.characters), tokens: several(s, "token", counts.yours) };
  setMyth(s, ".write", text.myth_unit_claim, s.box.value && !s.stale ? t(text.myth_unit, numbers) : null);
  const parts = table ? encodePrompt(table, word, null).tokens : [];
  setMyth(s, ".journey", text.myth_letters_claim, table ? t(text.myth_letters, { word, ids: parts.map((x) => x.id).join(", "), parts: parts.map(shown).join(" · ") }) : null);
}

// ---- chips -----------------------------------------------------------------------------------------------------------

function drawChips(s) {
  const { enc, text } = s, drawn = enc.tokens.slice(0, MAX_CHIPS), focused = s.q(".strip").contains(s.root.getRootNode().activeElement);
  s.chips = [];
  const nodes = characterGroups(drawn).map((group) => {
    const parts = group.map((i) => (s.chips[i] = tokenChip(s, i)));
    if (parts.length === 1) return parts[0];
    const whole = textOf(fromHex(group.map((i) => toHex(drawn[i].bytes)).join("")));
    return h("span", { class: "cluster" }, h("span", { class: "parts" }, ...parts), h("span", { class: "brace", "aria-hidden": "true" }, showToken(whole)));
  });
  s.q(".write .chips").replaceChildren(...nodes);
  s.q(".write .chips").classList.toggle("stale", s.stale);
  const rest = (enc.nTokens ?? enc.tokens.length) - drawn.length, more = s.q(".more");
  more.hidden = rest <= 0; more.textContent = t(text.more, { n: s.f.int(rest) });
  markChoice(s);
  if (focused) (s.chips[s.token] || s.chips[0])?.focus({ preventScroll: true });
}

function tokenChip(s, i) {
  const token = s.enc.tokens[i], { text } = s, partial = textOf(token.bytes).includes("\ufffd");
  const classes = ["chip", "tok", token.yours ? "phase-prefill" : "template", token.special && "special", partial && "partial"].filter(Boolean).join(" ");
  const label = t(text.token_label, { i: i + 1, text: shown(token), id: token.id }) + (token.yours ? "" : ", " + text.template) + (partial ? ", " + text.partial : "");
  return h("button", { class: classes, type: "button", dataset: { i, id: token.id }, title: token.special ? text.special : token.yours ? null : text.template, "aria-label": label, onclick: () => choose(s, i) },
    h("span", { class: "w" }, shown(token)), h("span", { class: "n" }, String(token.id)));
}

function choose(s, i, focus = false) {
  s.token = i; s.auto = false;
  markChoice(s); drawJourney(s);
  if (focus) { s.chips[i]?.focus({ preventScroll: true }); s.chips[i]?.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  later(s, "send", 250, () => send(s));
}

/** One chip is in the tab order; the arrows move among them. */
function markChoice(s) {
  s.chips.forEach((node, i) => { node.setAttribute("aria-pressed", String(i === s.token)); node.tabIndex = i === s.token ? 0 : -1; });
  if (s.chips.length && !(s.token in s.chips)) s.chips[0].tabIndex = 0;
}

function moveChoice(s, event) {
  const moves = { ArrowLeft: s.token - 1, ArrowRight: s.token + 1, Home: 0, End: s.chips.length - 1 };
  if (!(event.key in moves) || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  choose(s, Math.max(0, Math.min(s.chips.length - 1, moves[event.key])), true);
}

// ---- one token's way into the model ----------------------------------------------------------------------------------

function drawJourney(s) {
  const { text, enc } = s, token = enc.tokens[s.token], body = (name) => s.q(`.stop.${name} .body`);
  s.q(".journey").hidden = !token;
  if (!token) return;
  const word = textOf(token.bytes), group = characterGroups(enc.tokens.slice(0, MAX_CHIPS)).find((g) => g.includes(s.token)) || [s.token];
  s.q(".which").textContent = t(text.which, { i: s.token + 1, n: s.f.int(s.counts.tokens) }) + " " + journeyNote(s, token, group);
  body("text").replaceChildren(h("span", { class: "big chip " + (token.yours ? "phase-prefill" : "template") }, shown(token)));
  body("bytes").replaceChildren(...Array.from(token.bytes.slice(0, 48), (b) => h("span", { class: "byte" }, h("b", {}, b.toString(16).toUpperCase().padStart(2, "0")), h("i", {}, b > 32 && b < 127 ? String.fromCharCode(b) : b === 32 ? "·" : b < 32 || b === 127 ? showToken(String.fromCharCode(b)) : "\u00a0"))),
    token.bytes.length > 48 ? h("span", { class: "note" }, "… " + s.f.int(token.bytes.length)) : "");
  body("id").replaceChildren(h("b", { class: "number" }, String(token.id)), h("span", { class: "note" }, t(text.of_vocabulary, { n: s.f.int(s.data.vocab_size) })));
  s.q(".stop.row-of h3").textContent = t(text.stop_row, { id: token.id, n: s.f.int(s.data.hidden_size) });
  s.q(".stop.text .body").title = word.includes("\ufffd") ? text.partial : "";
  drawRow(s);
}

function journeyNote(s, token, group) {
  const { text, enc } = s;
  if (token.special) return text.special;
  if (group.length > 1) return t(text.part_of, { whole: textOf(fromHex(group.map((i) => toHex(enc.tokens[i].bytes)).join(""))), n: group.length });
  return token.yours ? "" : text.template + ".";
}

function rowOf(s) { const token = s.enc.tokens[s.token]; return token && globalThis.otatTokens?.get("row" + token.id); }

/** The row as a carpet of numbers: orange above zero, blue below, stronger colour for larger ones. */
function drawRow(s) {
  const row = rowOf(s), { text, f } = s, canvas = s.q(".row-of canvas"), n = s.data.hidden_size;
  const columns = canvas.clientWidth < 300 ? 24 : 48, lines = Math.ceil(n / columns);
  s.columns = columns;
  canvas.style.height = Math.round((canvas.clientWidth / columns) * lines * (columns === 48 ? 0.8 : 0.6)) + "px";
  const { ctx, w, h: height } = fitCanvas(canvas), c = (s.colours ||= palette(s.root)), cw = w / columns, ch = height / lines;
  ctx.fillStyle = c.soft; ctx.fillRect(0, 0, w, height);
  const near = s.q(".near");
  if (!row) {
    s.q(".scale").textContent = s.data.table || s.data.given?.words ? text.row_coming : text.row_waiting;
    near.replaceChildren();
    canvas.setAttribute("aria-label", text.row_coming);
    return;
  }
  const { values, meta } = row, high = Math.max(...values.map(Math.abs)) || 1;
  values.forEach((v, i) => {
    ctx.globalAlpha = Math.min(1, 0.06 + 0.94 * Math.sqrt(Math.abs(v) / high)); ctx.fillStyle = v < 0 ? c.prefill : c.decode;
    ctx.fillRect((i % columns) * cw + 0.4, Math.floor(i / columns) * ch + 0.4, cw - 0.8, ch - 0.8);
  });
  ctx.globalAlpha = 1;
  s.q(".scale").replaceChildren(t(text.scale, { low: f.number(meta.low, 2), high: f.number(meta.high, 2) }), h("br"), text.row_is_all);
  canvas.setAttribute("aria-label", t(text.row_aria, { n: f.int(n), id: meta.id }));
  if (near.dataset.id !== String(meta.id) || near.dataset.lang !== s.data.lang) {
    near.dataset.id = meta.id; near.dataset.lang = s.data.lang;
    near.replaceChildren(h("p", { class: "note" }, text.near, h("em", { class: "kind" }, text.computed)),
      h("div", { class: "chips" }, ...meta.near.map(([id, hex, cosine, special]) => h("span", { class: "chip tok" + (special ? " special" : ""), title: String(id) }, h("span", { class: "w" }, showToken(textOf(fromHex(hex)), hex, { special })), h("span", { class: "n" }, f.number(cosine, 2))))));
  } else if (!near.children.length) { near.dataset.id = ""; drawRow(s); }
}

function bindRow(s) {
  const canvas = s.q(".row-of canvas");
  canvas.onpointerleave = () => s.tip.hide();
  canvas.onpointermove = (event) => {
    const row = s.enc && rowOf(s);
    if (!row || event.pointerType === "touch") return;
    const box = canvas.getBoundingClientRect(), outer = s.q(".journey").getBoundingClientRect(), lines = Math.ceil(row.values.length / s.columns);
    const i = Math.floor((event.offsetX / box.width) * s.columns) + s.columns * Math.floor((event.offsetY / box.height) * lines);
    if (i < 0 || i >= row.values.length) return s.tip.hide();
    s.tip.show(event.clientX - outer.left, event.clientY - outer.top, t(s.text.number_of, { i: s.f.int(i + 1), value: s.f.number(row.values[i], 4) }));
  };
}

// ---- merges, one by one ----------------------------------------------------------------------------------------------

/** The words that hold something typed, as many as can be drawn. */
function setMerges(s) {
  const { enc, text } = s;
  let bytes = 0;
  const mine = (enc.words || []).filter((word) => word.ids.length ? word.ids.some((_, k) => enc.tokens[word.first + k]?.yours) : enc.given || (word.start < enc.to && word.stop > enc.from));
  s.words = mine.filter((word) => (bytes += word.kept.length) <= MAX_BYTES);
  s.cut = mine.length - s.words.length;
  s.order = playOrder(s.words);
  s.before = s.words.map(() => 0); s.drawnCounts = []; s.wordNodes = [];
  s.q(".intro").textContent = enc.words ? t(text.merges_intro, { n: s.f.int(s.data.n_merges) }) + (s.cut > 0 ? " " + t(text.merges_cut, { n: s.words.length }) : "") : text.merges_waiting;
  s.q(".words").classList.toggle("roomy", bytes <= 64);
  for (const part of [".stage", ".controls", ".caption", ".merges .legend"]) s.q(part).hidden = !enc.words;
  drawRail(s);
  s.q(".words").replaceChildren(...s.words.map((word, w) => (s.wordNodes[w] = h("div", { class: "word" }))));
  s.player.stop();
  s.player.update({ count: s.order.length, position: Math.max(0, s.merge ?? 0), fraction: 0 });
}

function drawRail(s) {
  const scale = (rank) => (Math.log(rank + 1) / Math.log(Math.max(2, s.data.n_merges))) * 100;
  s.ticks = s.order.map((step) => h("i", { style: { left: scale(s.words[step.word].merges[step.index].rank) + "%" } }));
  s.q(".rail").replaceChildren(...s.ticks);
}

function drawMerges(s, why) {
  const { player, order, text, f } = s, at = player.position, counts = s.words.map(() => 0);
  if (!s.enc.words) return;
  for (const step of order.slice(0, at)) counts[step.word] = step.index + 1;
  const last = order[at - 1], next = order[at];
  s.words.forEach((word, w) => {
    const key = `${counts[w]}/${last?.word === w}/${next?.word === w}`;
    if (s.drawnCounts[w] === key) return;
    s.drawnCounts[w] = key;
    drawWord(s, s.wordNodes[w], word, counts[w], last?.word === w ? word.merges[last.index].at : -1, next?.word === w ? word.merges[next.index].at : -1);
  });
  s.ticks.forEach((tick, i) => { tick.className = i === at - 1 ? "now" : i < at ? "past" : ""; });
  drawList(s, last ? s.words[last.word].merges[last.index].rank : null);
  const words = mergeWords(s, last, counts);
  if (s.q(".caption").textContent !== words) s.q(".caption").textContent = words;
  if (why === "commit") { s.merge = at; send(s); }
}

function mergeWords(s, last, counts) {
  const { text, f, player } = s;
  if (!s.order.length) return text.merge_none;
  if (!last) return t(text.merge_start, { n: f.int(s.words.reduce((sum, word) => sum + (word.special ? 0 : word.kept.length), 0)) });
  const word = s.words[last.word], merge = word.merges[last.index], before = symbolsAfter(word, last.index), k = before.findIndex((x) => x.start === merge.at);
  const [a, b] = [before[k - 1].bytes, before[k].bytes], show = (bytes) => showToken(textOf(bytes), toHex(bytes));
  const sentence = t(text.merge_step, { i: player.position, n: s.order.length, left: show(a), right: show(b), both: show(join(a, b)), rank: f.int(merge.rank) });
  return player.atEnd ? sentence + " " + t(text.merge_end, { n: f.int(counts.reduce((sum, c, w) => sum + symbolsAfter(s.words[w], c).length, 0)) }) : sentence;
}

function drawWord(s, node, word, done, joined, joining) {
  const symbols = symbolsAfter(word, done), finished = done >= word.merges.length;
  node.classList.toggle("special", word.special);
  node.replaceChildren(...symbols.map((symbol, k) => {
    const covers = joined >= symbol.start && joined < symbol.start + symbol.bytes.length && joined > symbol.start;
    const pair = joining >= 0 && (symbol.start === joining || symbols[k + 1]?.start === joining);
    const classes = ["sym", covers ? "just" : "", pair ? "pair" : "", finished ? "done" : ""].filter(Boolean).join(" ");
    return h("span", { class: classes }, h("span", { class: "w" }, showToken(textOf(symbol.bytes), toHex(symbol.bytes), word)), h("span", { class: "n" }, finished ? String(word.ids[k]) : "\u00a0"));
  }), ...word.unknown.map((b) => h("span", { class: "sym lost", title: s.text.lost }, h("span", { class: "w" }, b.toString(16).toUpperCase().padStart(2, "0")), h("span", { class: "n" }, "—"))));
}

/** The lines of the list around the rule that was just used. Only where the list itself is here. */
function drawList(s, rank) {
  const list = s.q(".list"), { table, f } = s;
  list.hidden = !table;
  if (!table || s.listed === rank + s.data.lang) return;
  s.listed = rank + s.data.lang;
  const first = Math.max(0, Math.min(table.n - 5, (rank ?? 2) - 2)), show = (id) => showToken(textOf(table.bytes(id)), toHex(table.bytes(id)));
  list.replaceChildren(...Array.from({ length: Math.min(5, table.n) }, (_, k) => {
    const [a, b] = table.pair(first + k);
    return h("li", { class: first + k === rank ? "now" : "" }, h("span", { class: "rank" }, f.int(first + k)), h("code", {}, show(a)), h("span", { class: "plus" }, "+"), h("code", {}, show(b)));
  }));
}

// ---- what Streamlit calls --------------------------------------------------------------------------------------------

function setWords(s) {
  const { text, data } = s;
  s.root.setAttribute("aria-label", text.aria);
  s.q(".ask span").textContent = text.ask;
  s.q(".examples").setAttribute("aria-label", text.examples);
  s.q(".examples").replaceChildren(h("span", { class: "note" }, text.examples), ...data.examples.map(([label, example]) => h("button", { class: "btn small", type: "button", onclick: () => { s.box.value = example; s.box.oninput(); send(s); } }, label)));
  s.q(".between .seg").setAttribute("aria-label", text.mode);
  s.q(".strip").setAttribute("aria-label", text.tokens_aria);
  s.q(".marks").replaceChildren(...[["yours", text.legend_yours], ["added", text.legend_added], ["special", text.legend_special], ["split", text.legend_split]].map(([k, label]) => h("span", {}, h("i", { class: "m-" + k }), label)));
  s.q(".journey h2").textContent = text.journey; s.q(".merges h2").textContent = text.merges;
  for (const name of ["text", "bytes", "id"]) s.q(`.stop.${name} h3`).textContent = text["stop_" + name];
  s.q(".rule h3").textContent = text.list;
  s.q(".ends").replaceChildren(h("span", {}, text.list_first), h("span", {}, t(text.list_last, { n: s.f.int(Math.max(0, data.n_merges - 1)) })));
  for (const place of [".merges", ".words"]) s.q(place).setAttribute("aria-label", text.merges);
  s.q(".merges .legend").replaceChildren(...[["pair", text.legend_pair], ["just", text.legend_just], ["done", text.legend_done]].map(([k, label]) => h("span", {}, h("i", { class: "m-" + k }), label)));
  const valueText = (p) => t(text.merge_of, { i: p.position, n: p.count });
  if (!s.bar) s.q(".controls").append((s.bar = playerBar(s.player, text, { speeds: [0.25, 0.5, 1, 2, 4], valueText }))); else s.bar.setText(text);
}

export default function (component) {
  const { data, parentElement, setStateValue } = opened(component);
  const s = instance(parentElement, buildLab);
  if (!data) return;
  const words = JSON.stringify([data.text, data.lang, data.n_merges]);
  Object.assign(s, { data, setStateValue, text: data.text, f: formats(data.lang) });
  const { typed, chat, token, merge, seq } = data;
  if (s.link.isNews({ typed, chat, token, merge }, seq)) {
    Object.assign(s, { chat, token, auto: token < 0, merge });
    if (s.box.value !== typed) s.box.value = typed;
  }
  if (s.words_ !== words) { s.words_ = words; s.listed = null; setWords(s); }
  const inputs = JSON.stringify([s.box.value, s.chat, data.table, data.parts, data.given, words]);
  if (s.inputs !== inputs || !s.enc) { s.inputs = inputs; s.merge ??= s.player.position; read(s); }
}
