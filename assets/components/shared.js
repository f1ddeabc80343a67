/* Helpers for every component, prepended to each component's own main.js (so: plain declarations, no import, no export).
 *
 * DOM         h(tag, props, ...children)      svg(tag, attributes, ...children)      instance(parentElement, create)
 * TEXT        t(template, values)             showToken(text, hex, options)          chip(token, options)
 * NUMBERS     formats(lang) -> {int, number, bytes, ms, percent, bits}                axisTicks(max, width, gap)
 * DATA        column(value)  table(value)     numpy arrays sent by Python arrive as Arrow tables
 * DRAWING     fitCanvas(canvas) -> {ctx, w, h}   palette(element)   hatch(ctx, colour)   rem()
 * TIME        new Player({...})   playerBar(player, text, options)   bindKeys(root, player)   once(fn)   settle(fn, ms)   reducedMotion()
 * PYTHON      new Agreement() -> {number(values), isNews(values, seq), holds(values)}     what both sides may change
 * WATCHING    watch(root, redraw) -> stop     redraws on resize, theme, projector mode          listen(root, name, hear) -> stop
 * FEEDBACK    tooltip(root) -> {show, hide}   announcer(root) -> say(text)
 *
 * Streamlit calls a component's default export again for each new `data` or theme: build once in instance(), then update.
 * Every text that comes from a model or a learner goes through textContent (h does that), never innerHTML.
 */

/** An element: h("button", {class: "btn", onclick: go, "aria-label": "Back", dataset: {i: 1}, style: {width: "2rem"}}, "‹"). */
function h(tag, props = {}, ...children) {
  return dress(document.createElement(tag), props, children);
}

/** An SVG element; attributes only (plus on… handlers). */
function svg(tag, props = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function dress(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) k.startsWith("--") ? node.style.setProperty(k, v) : (node.style[k] = v);
    else if (name === "value" || name === "checked" || name === "textContent") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const INSTANCES = new WeakMap();
/** This mount's own state: create(root) runs once per mount, later calls return the same object. `.root` of index.html is passed. */
function instance(parentElement, create) {
  const root = parentElement.querySelector(".root") || parentElement;
  const known = INSTANCES.get(parentElement);
  if (known && known.root === root) return known.state; // the same DOM; after a hot reload Streamlit replaces it
  const state = create(root);
  INSTANCES.set(parentElement, { root, state });
  return state;
}

/** Fills {placeholders} of a translated string. An unknown one stays visible, so that a missing value is seen. */
function t(template, values = {}) {
  return String(template ?? "").replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

const VISIBLE = { "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽", "\u3000": "□", "\u200b": "ZWSP", "\u200c": "ZWNJ", "\u200d": "ZWJ", "\ufeff": "BOM", "\u007f": "␡" };
/** A token as readable chip text: · for a space, ⏎ for a line end, bytes in hex where the token is only part of a character.
 *  hex: the token's bytes ("e4bb8a"), the truth when `text` is incomplete. */
function showToken(text, hex = "", { special = false } = {}) {
  const s = String(text ?? "");
  if (s.includes("\ufffd") && hex) return hex.toUpperCase().replace(/(..)(?=.)/g, "$1 ");
  if (s === "") return hex ? hex.toUpperCase().replace(/(..)(?=.)/g, "$1 ") : "∅";
  if (special) return s;
  return Array.from(s, (c) => {
    if (c === " ") return "·";
    if (VISIBLE[c]) return VISIBLE[c];
    const code = c.codePointAt(0);
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    // Bidirectional and other format controls could reorder the chips around them.
    if ((code >= 0x80 && code < 0xa0) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code === 0x200e || code === 0x200f) return "U+" + code.toString(16).toUpperCase().padStart(4, "0");
    return c;
  }).join("");
}

/** A token chip. token: {text, hex, special, id}; options: {phase: "prefill"|"decode"|"new"|"draft"|"out", onclick, class, label}. */
function chip(token, { phase = "", onclick = null, label = null, ...more } = {}) {
  const classes = ["chip", phase && "phase-" + phase, token.special && "special", more.class].filter(Boolean).join(" ");
  const props = { class: classes, onclick, "aria-label": label, title: more.title, dataset: more.dataset };
  if (onclick) props.type = "button";
  return h(onclick ? "button" : "span", props, showToken(token.text, token.hex, token));
}

const FORMATS = new Map();
/** Number formats of a language. bytes: KiB, MiB, GiB are powers of 1024. ms takes milliseconds. percent takes a fraction. */
function formats(lang = "en") {
  if (FORMATS.has(lang)) return FORMATS.get(lang);
  const make = (options) => { const f = new Intl.NumberFormat(lang, options); return (x) => f.format(x); };
  const int = make({ maximumFractionDigits: 0 });
  const digits = [0, 1, 2, 3, 4].map((n) => make({ minimumFractionDigits: n, maximumFractionDigits: n }));
  const three = (x) => digits[Math.abs(x) >= 99.95 ? 0 : Math.abs(x) >= 9.995 ? 1 : 2](x);
  const f = {
    int, digits,
    number: (x, n = 2) => digits[n](x),
    bytes: (x) => { const unit = x < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(x) / 10)); return (unit && x % 1024 ** unit ? three(x / 1024 ** unit) : int(x / 1024 ** unit)) + "\u00a0" + ["B", "KiB", "MiB", "GiB", "TiB"][unit]; },
    exactBytes: (x) => int(x) + "\u00a0B",
    ms: (x) => (x >= 10000 ? digits[1](x / 1000) + "\u00a0s" : x >= 1000 ? digits[2](x / 1000) + "\u00a0s" : (x >= 9.95 || x === 0 ? int(x) : digits[x >= 0.995 ? 1 : 2](x)) + "\u00a0ms"),
    percent: (x) => (x > 0 && x < 0.0005 ? "< " + digits[1](0.1) : digits[x < 0.9995 && x > 0.99949 ? 2 : 1](x * 100)) + "\u00a0%",
    bits: (x) => digits[2](x),
  };
  FORMATS.set(lang, f);
  return f;
}

/** Round tick values from 0 to max, never closer than `gap` pixels on an axis `width` pixels wide. */
function axisTicks(max, width, gap = 64) {
  if (!(max > 0) || !(width > 0)) return [0];
  const rough = (max * gap) / width, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  return Array.from({ length: Math.floor(max / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** The component with its data as the page gave it: data without arrays travels in a list of one (see components.py). */
function opened(component) {
  return { ...component, data: Array.isArray(component.data) ? component.data[0] : component.data };
}

/** A numpy array sent by Python, as a typed array. Plain arrays and null pass through. */
function column(value, index = 0) {
  if (value === null || value === undefined) return null;
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return value;
  const vector = value.getChildAt ? value.getChildAt(index) : value.table?.getChildAt?.(index) ?? value;
  return vector && vector.toArray ? vector.toArray() : vector;
}

/** A data frame sent by Python, as {columnName: array}. */
function table(value) {
  const arrow = value?.schema ? value : value?.table;
  if (!arrow?.schema) return {};
  return Object.fromEntries(arrow.schema.fields.map((field, i) => [field.name, column(arrow, i)]));
}

/** Pixels of one rem now: canvases scale with projector mode through it. */
function rem(n = 1) { return n * parseFloat(getComputedStyle(document.documentElement).fontSize || "16"); }

/** Fits a canvas's pixels to its CSS box and the screen's density, clears it, and returns {ctx, w, h} in CSS pixels.
 *  w is 0 while the canvas is not on screen (a page that is being left): draw nothing then. */
function fitCanvas(canvas) {
  const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  const pw = Math.max(1, Math.round(w * ratio)), ph = Math.max(1, Math.round(h * ratio));
  if (canvas.width !== pw) canvas.width = pw;
  if (canvas.height !== ph) canvas.height = ph;
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, w, h);
  return { ctx, w, h };
}

const COLOURS = ["paper", "card", "soft", "ink", "muted", "line", "edge", "out", ...["prefill", "decode", "new", "cache", "wait"].flatMap((c) => [c, c + "-soft", c + "-ink"])];
/** The palette as resolved colours for a canvas: palette(root).prefill, ["prefill-soft"], … plus .sans and .mono. Call it per redraw. */
function palette(element) {
  const probe = h("i", { style: { display: "none" } });
  element.append(probe);
  const style = getComputedStyle(probe), out = {};
  // A custom property reads back as the text `light-dark(…)`; only a real property resolves it.
  for (const name of COLOURS) { probe.style.color = `var(--${name})`; out[name] = style.color; }
  for (const name of ["sans", "mono"]) { probe.style.fontFamily = `var(--${name})`; out[name] = style.fontFamily; }
  probe.remove();
  return out;
}

/** A diagonal pattern of this colour: the second cue of decode on canvases. */
function hatch(ctx, colour, { gap = 5, paper = "rgba(255,255,255,.3)" } = {}) {
  const tile = document.createElement("canvas"), ratio = window.devicePixelRatio || 1;
  tile.width = tile.height = Math.round(gap * ratio);
  const x = tile.getContext("2d"), n = tile.width;
  x.fillStyle = colour; x.fillRect(0, 0, n, n);
  x.strokeStyle = paper; x.lineWidth = ratio;
  for (const d of [-n, 0, n]) { x.beginPath(); x.moveTo(d, n); x.lineTo(d + n, 0); x.stroke(); }
  const pattern = ctx.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

function reducedMotion() { return window.matchMedia("(prefers-reduced-motion: reduce)").matches; }

/** Calls fn at most once per animation frame, however often it is asked. */
function once(fn) {
  let asked = false;
  return () => { if (asked) return; asked = true; requestAnimationFrame(() => { asked = false; fn(); }); };
}

/** Calls fn only when nobody has asked again for `ms` milliseconds: Python hears where a learner stopped, not each step there. */
function settle(fn, ms = 200) {
  let timer = 0;
  const later = (...values) => { clearTimeout(timer); timer = setTimeout(() => fn(...values), ms); };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/** Values that the learner changes here, and Python keeps (and sometimes changes: Back in the browser, a pasted model).
 *
 *  Python answers each change with a new drawing, and by then the learner may be further on. So changes are numbered, and
 *  Python says which one its values include (`numbered` of components.mount): what answers an older one is no news. */
class Agreement {
  #seq = null; #known = "";
  /** One text per set of values, whatever the order of their names. */
  static nameOf(values) { return JSON.stringify(Object.entries(values).sort(([a], [b]) => (a < b ? -1 : 1))); }
  /** Whether both sides already have these values. */
  holds(values) { return Agreement.nameOf(values) === this.#known; }
  /** The message that tells Python of the learner's new values. */
  number(values) { this.#known = Agreement.nameOf(values); this.#seq = (this.#seq ?? 0) + 1; return { ...values, seq: this.#seq }; }
  /** Whether to take over what Python says: the first values of all, or others than those that both had. */
  isNews(values, seq = 0) {
    if (this.#seq !== null && (seq < this.#seq || this.holds(values))) return false;
    this.#seq = Math.max(seq, this.#seq ?? 0); this.#known = Agreement.nameOf(values);
    return true;
  }
}

/** Calls hear(event) for an event on window, until root has left the page: nobody tells a component that it was left.
 *  (Those that have left are found when another one begins to listen.) Returns a function that stops it. */
function listen(root, name, hear) {
  const all = (globalThis.otatListeners ??= new Set()), entry = { root, since: performance.now() };
  for (const other of all) if (!other.root.isConnected && performance.now() - other.since > 5000) other.stop();
  entry.stop = () => { all.delete(entry); window.removeEventListener(name, hear); };
  window.addEventListener(name, hear);
  all.add(entry);
  return entry.stop;
}

/** Redraws when the size, the theme, the density or projector mode changes. Returns a function that stops watching. */
function watch(root, redraw) {
  const again = once(redraw);
  const probe = h("i", { class: "theme-probe", "aria-hidden": "true" });
  root.append(probe);
  const observer = new ResizeObserver(again);
  observer.observe(root);
  observer.observe(probe); // one rem wide: projector mode changes it
  probe.ontransitionrun = again; // --ink changed: another theme
  const deaf = listen(root, "resize", again);
  return () => { observer.disconnect(); probe.remove(); deaf(); };
}

/** One tooltip inside root (root must be positioned). show(x, y, content): CSS pixels relative to root. */
function tooltip(root) {
  const box = h("div", { class: "tip", role: "status", hidden: true });
  root.append(box);
  return {
    hide() { box.hidden = true; },
    show(x, y, ...content) {
      box.replaceChildren(...content); box.hidden = false;
      const left = Math.max(4, Math.min(x - box.offsetWidth / 2, root.clientWidth - box.offsetWidth - 4));
      const above = y - box.offsetHeight - 10;
      box.style.left = left + "px"; box.style.top = (above < 0 ? y + 18 : above) + "px";
    },
  };
}

/** A polite live region: say("Pass 3 of 25 …") is read out, at most every half second while playing. */
function announcer(root) {
  const region = h("div", { class: "sr", "aria-live": "polite" });
  root.append(region);
  let timer = 0;
  return (text) => { clearTimeout(timer); timer = setTimeout(() => { region.textContent = text; }, 500); };
}

/** A player over `count` steps with real durations.
 *
 *  position 0…count is the number of finished steps; `fraction` is how much of the next one has passed while playing.
 *  new Player({count, duration: i => seconds of step i, position, speed, live, onChange(player, why), onState(player)})
 *  why: "play" (a frame), "step" (the learner is moving), "commit" (the learner stopped: tell Python now), "data".
 *  live: at the end it waits for more steps, and goes on when update({count}) brings them, unless the learner stepped back.
 */
class Player {
  constructor(options) {
    this.position = 0; this.fraction = 0; this.count = 0; this.speed = 1; this.playing = false; this.live = false; this.following = true;
    this.duration = () => 0.5; this.onChange = () => {}; this.onState = () => {}; this.frame = 0; this.last = 0; this.views = [];
    Object.assign(this, options);
    this.position = Math.max(0, Math.min(this.count, options.position ?? this.count));
  }
  /** New data. Keeps the learner's position; a learner who follows a live run goes on with it. */
  update(options) {
    const wasAtEnd = this.position >= this.count, wasLive = this.live;
    Object.assign(this, options);
    this.position = Math.max(0, Math.min(this.count, this.position));
    if (options.position === undefined && (this.live || wasLive) && this.following && wasAtEnd && this.position < this.count) this.start();
    this.tell("data");
  }
  tell(why) { this.onChange(this, why); for (const view of this.views) view(this, why); }
  get atEnd() { return this.position >= this.count; }
  toggle() { this.playing ? this.pause() : this.play(); }
  play() {
    if (this.atEnd && !this.live) { this.position = 0; this.fraction = 0; }
    this.following = true;
    this.start();
    this.tell("step");
  }
  start() {
    if (this.playing) return;
    this.playing = true; this.last = 0; this.onState(this);
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }
  pause({ quiet = false } = {}) {
    if (!this.playing) return;
    this.playing = false; this.fraction = 0; cancelAnimationFrame(this.frame); this.onState(this);
    if (!quiet) this.tell("commit");
  }
  tick(now) {
    if (!this.playing) return;
    // A hidden tab delivers one huge interval on return: do not jump through the whole run.
    // Nobody can follow a live run in slow motion: slower speeds wait until it is over.
    let left = this.last ? Math.min(0.25, (now - this.last) / 1000) * (this.live ? Math.max(1, this.speed) : this.speed) : 0;
    this.last = now;
    // A live run that got ahead of the screen is caught up with gently.
    if (this.live && this.count - this.position > 12) left *= (this.count - this.position) / 12;
    while (left > 0 && this.position < this.count) {
      const length = Math.max(1e-4, this.duration(this.position)), rest = length * (1 - this.fraction);
      if (left >= rest) { left -= rest; this.position += 1; this.fraction = 0; } else { this.fraction += left / length; left = 0; }
    }
    if (this.atEnd) {
      this.playing = false; this.fraction = 0; this.onState(this);
      this.tell(this.live ? "play" : "commit");
      return;
    }
    this.tell("play");
    this.frame = requestAnimationFrame((later) => this.tick(later));
  }
  /** Goes to a position. commit: the learner has decided (a click, a key, the slider let go). */
  go(position, { commit = true } = {}) {
    this.pause({ quiet: true });
    this.position = Math.max(0, Math.min(this.count, Math.round(position))); this.fraction = 0;
    this.following = this.position >= this.count;
    this.tell(commit ? "commit" : "step");
  }
  stop() { this.playing = false; cancelAnimationFrame(this.frame); }
}

/** The controls of a Player: play/pause, back, forward, a scrub slider, a speed menu. Returns the element.
 *  text: {play, pause, back, forward, position, speed, speed_real, speed_slower ("{n}× slower"), speed_faster ("{n}× faster")}
 *  options: {speeds: [0.05, 0.25, 1, 4], valueText: player => "pass 3 of 25"} */
function playerBar(player, text, { speeds = [0.05, 0.25, 1, 4], valueText = (p) => `${p.position} / ${p.count}` } = {}) {
  const play = h("button", { class: "btn primary play", type: "button", onclick: () => player.toggle() });
  const back = h("button", { class: "btn icon back", type: "button", onclick: () => player.go(player.position - 1) }, "‹");
  const forward = h("button", { class: "btn icon forward", type: "button", onclick: () => player.go(player.position + 1) }, "›");
  const scrub = h("input", { class: "scrub", type: "range", min: 0, step: 1 });
  scrub.oninput = () => player.go(+scrub.value, { commit: false });
  scrub.onchange = () => player.go(+scrub.value);
  const speed = h("select", { class: "speed", onchange: () => { player.speed = +speed.value; } });
  const bar = h("div", { class: "player" }, h("div", { class: "buttons" }, play, back, forward), scrub, speed);
  bar.setText = (words) => {
    text = words;
    for (const [node, label] of [[back, "back"], [forward, "forward"], [scrub, "position"], [speed, "speed"]]) node.setAttribute("aria-label", words[label]);
    for (const node of [back, forward]) node.title = node.getAttribute("aria-label");
    speed.replaceChildren(...speeds.map((s) => h("option", { value: s }, s === 1 ? words.speed_real : s < 1 ? t(words.speed_slower, { n: Math.round(1 / s) }) : t(words.speed_faster, { n: s }))));
    speed.value = String(player.speed);
    draw();
  };
  const draw = () => {
    const label = player.playing ? "❚❚ " + text.pause : "▶ " + text.play;
    if (play.textContent !== label) play.textContent = label;
    scrub.max = player.count; scrub.value = player.position;
    scrub.setAttribute("aria-valuetext", valueText(player));
    // Hidden focus is lost focus: a disabled button would drop it, so only mark it.
    back.setAttribute("aria-disabled", player.position <= 0); forward.setAttribute("aria-disabled", player.atEnd);
    play.disabled = player.count === 0;
  };
  player.views.push(draw);
  bar.setText(text);
  return bar;
}

/** Keyboard of a component: space plays, arrows step, home and end jump. Only while focus is inside root, never in a field. */
function bindKeys(root, player, { skip = null } = {}) {
  root.onkeydown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return;
    const target = event.composedPath()[0], tag = target.tagName;
    if (tag === "SELECT" || tag === "TEXTAREA" || (tag === "INPUT" && target.type !== "range") || (skip && skip(target))) return;
    const range = tag === "INPUT" && !target.classList.contains("scrub");
    if (range && event.key !== " ") return; // another slider keeps its own arrows
    if (event.key === " " && tag === "BUTTON") return; // the button's own click
    const moves = { ArrowLeft: player.position - 1, ArrowRight: player.position + 1, Home: 0, End: player.count };
    if (event.key === " ") player.toggle();
    else if (event.key in moves) player.go(moves[event.key]);
    else return;
    event.preventDefault();
  };
}
