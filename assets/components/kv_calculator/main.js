/* The KV-memory calculator: every figure and picture is recomputed in the browser while a slider moves.
 *
 * DATA (built by pages/views/kv_memory_data.py)
 * {
 *   models: [{id, name, source, layers: [{kind, k, v, window, state, heads, parts}], order: [index into layers],
 *             n_heads, head_dim, max_context, n_parameters, n_cross_tokens}],   published, "running", perhaps "custom"
 *   devices: [{id, name, kind, memory_mib, source}],
 *   dtypes, weight_dtypes: {name: [values, bytes]},
 *   settings: {model shape window pattern mla layers name tokens users cross k v tp ubatch block batched card gib params weights over},
 *   seq,                            see Agreement in shared.js
 *   revision,                       changes when Python itself changed the settings (a pasted or dropped model)
 *   revealed,                       the question above the calculator was answered
 *   limits: {tokens, users}, lang, text: {…}
 * }
 * Sends setStateValue settings {…, seq} when a control is let go, and setTriggerValue file {name, text} or {name, table} for a
 * chosen or dropped file. A GGUF file stays here: only its metadata table is read, value by value, and sent.
 */

/* ---- kv maths: begin (held equal to core/kv_memory.py by tests/browser/test_kv_memory_browser.py) ---- */

/** What no engine could do; `code` is a key of the texts. */
class KvError extends Error { constructor(code, values = {}) { super(code); this.code = code; this.values = values; } }
const ceilDiv = (a, b) => (a + b - 1n) / b;
const roundUp = (n, step) => ceilDiv(n, step) * step;
const least = (a, b) => (a < b ? a : b);

/** Bytes of n values in a dtype [values in a block, bytes of a block]; the last, partly filled byte is a whole one. */
const storedBytes = (n, [values, size]) => ceilDiv(n * BigInt(size), BigInt(values));

/** Token places that an engine reserves for a layer of this kind. All BigInt. */
function places(engine, kind, window, n, users, cross, o) {
  if (kind === "cross") return engine === "vllm" ? roundUp(cross, o.block) * users : cross * users;
  const slides = kind === "window" && engine !== "no_window";
  if (engine === "llama.cpp") {
    const cells = roundUp(n, 256n);
    return (slides ? least(cells, roundUp(window + o.ubatch, 256n)) : cells) * users;
  }
  if (engine === "vllm") {
    const all = roundUp(n, o.block);
    return (slides ? least(all, roundUp(least(window - 1n + o.batched, n), o.block) + o.block) : all) * users;
  }
  return (slides ? least(n, window) : n) * users;
}

/** Values per token on one rank: heads are dealt out, a latent (no heads) is kept whole by every rank. */
function rankShare(layer, elements, ranks) {
  if (ranks === 1 || elements === 0) return BigInt(elements);
  if (layer.heads === 0) {
    if (layer.v === 0) return BigInt(elements);
    throw new KvError("tp_unknown");
  }
  if (layer.heads % ranks && ranks % layer.heads) throw new KvError("tp_heads", { n: layer.heads });
  return BigInt((elements / layer.heads) * Math.max(1, Math.floor(layer.heads / ranks)));
}

/** Bytes of the cache: {full, window, state, cross, total}, BigInt. groups: [[layer, count]…]; s: the settings as numbers. */
function kvBytes(groups, s, dtypes, engine = "ideal", n = BigInt(s.tokens), users = BigInt(s.users)) {
  const o = { ubatch: BigInt(s.ubatch), block: BigInt(s.block), batched: BigInt(s.batched) };
  const k = dtypes[s.k], v = dtypes[s.v || s.k], sums = { full: 0n, window: 0n, state: 0n, cross: 0n };
  for (const [layer, count] of groups) {
    if (layer.kind in sums && layer.kind !== "state") {
      const where = places(engine, layer.kind, BigInt(layer.window), n, users, BigInt(s.cross), o);
      const bytes = storedBytes(rankShare(layer, layer.k, s.tp) * where, k) + storedBytes(rankShare(layer, layer.v, s.tp) * where, v);
      sums[layer.kind] += BigInt(count) * bytes;
    }
    if (layer.state) {
      const parts = layer.parts || layer.state;
      if (parts % s.tp) throw new KvError("tp_state", { n: parts });
      sums.state += BigInt(count) * BigInt(layer.state / s.tp) * users * 4n;
    }
  }
  return { ...sums, total: sums.full + sums.window + sums.state + sums.cross };
}

/** The largest n with fits(n), which turns false once and stays so; 0 if none, null if there is no end below `top`. */
function largest(fits, top) {
  let low = 0n, high = 1n;
  while (fits(high)) { low = high; high *= 4n; if (high > top) return null; }
  while (high - low > 1n) { const middle = (low + high) / 2n; if (fits(middle)) low = middle; else high = middle; }
  return low;
}
const TOP = 10n ** 15n;
const maxTokens = (groups, budget, s, dtypes, engine) => largest((n) => kvBytes(groups, s, dtypes, engine, n).total <= budget, TOP);
const maxUsers = (groups, budget, s, dtypes, engine) => largest((n) => kvBytes(groups, s, dtypes, engine, BigInt(s.tokens), n).total <= budget, TOP);

/** The layers of a model with how often each occurs. */
function grouped(model) {
  const counts = new Map();
  for (const i of model.order) counts.set(i, (counts.get(i) || 0) + 1);
  return [...counts].map(([i, count]) => [model.layers[i], count]);
}

/** Layers of one shape from the sliders, as core's KVLayout.uniform and .latent. */
function manualModel(s) {
  const [layers, heads, kv, width] = s.shape.split("-").map(Number), layer = { kind: "full", k: kv * width, v: kv * width, window: 0, state: 0, heads: kv, parts: 0 };
  const facts = { id: "manual", n_heads: heads, head_dim: width, max_context: 0, n_parameters: 0, n_cross_tokens: 0, source: "" };
  if (s.mla) {
    const [rank, rope] = s.mla.split("-").map(Number);
    return { ...facts, layers: [{ ...layer, k: rank + rope, v: 0, heads: 0 }], order: Array(layers).fill(0) };
  }
  if (!s.window) return { ...facts, layers: [layer], order: Array(layers).fill(0) };
  const order = Array.from({ length: layers }, (_, i) => (s.pattern && (i + 1) % s.pattern === 0 ? 0 : 1));
  return { ...facts, layers: [layer, { ...layer, kind: "window", window: s.window }], order };
}

/* ---- kv maths: end ---- */

const ENGINES = ["ideal", "llama.cpp", "vllm", "no_window"];
const KINDS = ["full", "window", "state", "cross", "none"];
const USERS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512, 768, 1024];
const HEADS = [1, 2, 4, 6, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 71, 80, 96, 112, 128];
const WIDTHS = [16, 32, 48, 64, 72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 512, 576];
const WINDOWS = [0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072];
const RANKS = [64, 128, 192, 256, 384, 512, 768, 1024];
const GIB = 2 ** 30;
const MAP_TOKENS = Array.from({ length: 12 }, (_, i) => 2 ** (i + 9)), MAP_USERS = Array.from({ length: 9 }, (_, i) => 2 ** i);
const EXAMPLE = "llama-3.1-8b";

/** One calculator: builds its elements once, then `receive`s data and `draw`s. */
class Calculator {
  constructor(root) {
    this.root = root; this.s = null; this.link = new Agreement();
    this.unseen = new Set(); this.waiting = new Map(); // canvases out of view, and how to draw each canvas that is out of date
    this.redraw = once(() => this.draw());
    this.say = announcer(root);
  }

  receive(data, send, sendFile) {
    this.send = send; this.sendFile = sendFile;
    const words = JSON.stringify([data.lang, data.text, data.models.map((m) => m.id + m.name)]);
    this.data = data; this.T = data.text; this.f = formats(data.lang);
    if (this.link.isNews(data.settings, data.seq) || data.revision !== this.revision) this.s = { ...data.settings };
    this.revision = data.revision;
    if (this.words !== words) { this.words = words; this.build(); }
    this.fill(); this.draw();
  }

  /* -- state ---------------------------------------------------------------------------------------------------- */

  get model() { return this.s.model === "manual" ? manualModel(this.s) : this.data.models.find((m) => m.id === this.s.model) || manualModel(this.s); }
  set(changes, { commit = true } = {}) {
    Object.assign(this.s, changes);
    if (commit) { this.fill(); this.commit(); }
    this.redraw();
  }
  commit() {
    if (!this.link.holds(this.s)) this.send(this.link.number(this.s));
  }
  /** The sliders' shape for the model now: what they start from when a published model is changed by hand. */
  shape() {
    if (this.s.model === "manual") return this.s.shape.split("-").map(Number);
    const m = this.model, first = m.layers[m.order.find((i) => m.layers[i].k > 0) ?? m.order[0]] || {};
    const kv = first.heads || 1, width = first.heads ? Math.round(first.k / first.heads) : m.head_dim || 128, heads = m.n_heads || kv;
    return [Math.min(1000, m.order.length), heads % kv ? kv : heads, kv, width];
  }
  /** Moving a slider of the shape makes the model one's own. */
  reshape(part, value, options) {
    const shape = this.shape(), m = this.model;
    if (this.s.model !== "manual") {
      const windowed = m.layers.find((layer) => layer.kind === "window");
      const latent = m.layers.length === 1 && m.layers[0].heads === 0 && m.layers[0].v === 0 && m.layers[0].k > 64;
      Object.assign(this.s, { window: windowed ? windowed.window : 0, pattern: windowed ? this.period(m) : 0, mla: latent ? `${m.layers[0].k - 64}-64` : "" });
    }
    shape[part] = value;
    if (part === 1 && shape[1] % shape[2]) shape[2] = [...divisors(shape[1])].reverse().find((d) => d <= shape[2]) || 1;
    this.set({ model: "manual", shape: shape.join("-") }, options);
  }
  /** Every how many layers one is full, if the model is that regular; 0 otherwise. */
  period(m) {
    const full = m.order.map((i) => m.layers[i].kind === "full"), first = full.indexOf(true) + 1;
    return first > 0 && full.every((is, i) => is === ((i + 1) % first === 0)) ? first : 0;
  }
  get device() { return this.data.devices.find((d) => d.id === this.s.card) || this.data.devices[0]; }
  get memory() { return this.s.gib > 0 ? Math.round(this.s.gib * GIB) : this.device.memory_mib * 2 ** 20; }
  get parameters() { return this.s.params > 0 ? Math.round(this.s.params * 1e9) : this.model.n_parameters; }
  weights(dtype = this.s.weights) {
    const [values, size] = this.data.weight_dtypes[dtype];
    return this.parameters ? Math.ceil((this.parameters * size) / values / this.s.tp) : 0;
  }
  get free() { return Math.max(0, this.memory - this.weights() - Math.round(this.s.over * GIB)); }
  bytes(engine, changes = {}, groups = this.groups) { return kvBytes(groups, { ...this.s, ...changes }, this.data.dtypes, engine); }

  /* -- building ------------------------------------------------------------------------------------------------- */

  build() {
    const T = this.T;
    this.stop?.();
    this.controls = {}; this.looks = null; this.unseen.clear(); this.waiting.clear();
    const chooser = h("select", { class: "model", "aria-label": T.model, onchange: () => this.set({ model: chooser.value, cross: this.crossOf(chooser.value) }) });
    const group = (label, ids) => h("optgroup", { label }, this.data.models.filter((m) => ids(m.id)).map((m) => h("option", { value: m.id }, m.id === "running" ? t(T.running, { name: m.name }) : m.name)));
    chooser.append(group(T.published, (id) => !["running", "custom"].includes(id)), group(T.own, (id) => ["running", "custom"].includes(id)));
    chooser.lastChild.append(h("option", { value: "manual" }, T.manual));
    const file = h("input", { type: "file", accept: ".json,.gguf", class: "sr", "aria-label": T.file, tabindex: -1, onchange: () => { this.read(file.files[0]); file.value = ""; } });
    const pick = h("button", { class: "btn", type: "button", onclick: () => file.click() }, T.file);
    const example = h("button", { class: "btn primary", type: "button", onclick: () => this.set({ model: EXAMPLE, tokens: 4096, users: 1, k: "f16", v: "", tp: 1, params: 0, weights: "bf16", cross: 0 }) }, T.example);
    this.note = h("p", { class: "note source" });
    this.message = h("p", { class: "message", role: "status" });
    this.chooser = chooser;
    this.formula = h("div", { class: "formula" });
    this.figures = h("div", { class: "figs main-figs" });
    this.examples = h("div", { class: "examples" });
    const head = h("section", { class: "card" }, h("div", { class: "bar" }, chooser, example, pick, file), this.note,
      h("div", { class: "two" }, h("div", { class: "controls" }, this.buildControls()), h("div", {}, this.heading(T.formula), this.formula, this.message, this.figures)));
    head.ondragover = (event) => { event.preventDefault(); head.classList.add("over"); };
    head.ondragleave = () => head.classList.remove("over");
    head.ondrop = (event) => { event.preventDefault(); head.classList.remove("over"); this.read(event.dataTransfer.files[0]); };
    this.root.replaceChildren(head, h("section", { class: "card" }, this.heading(T.example_title), h("p", { class: "note" }, T.example_note), this.examples), this.buildFit(), this.buildPictures(), this.buildExport());
    this.root.append(h("i", { hidden: true }));
    this.say = announcer(this.root);
    this.tip = tooltip(this.mapBox);
    const views = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) isIntersecting ? this.unseen.delete(target) : this.unseen.add(target);
      this.paint();
    }, { rootMargin: "25%", scrollMargin: "25%" }); // a little before they come into view
    for (const canvas of [this.map, this.growth, this.layers]) views.observe(canvas);
    const unwatch = watch(this.root, () => { this.looks = null; this.redraw(); });
    this.stop = () => { views.disconnect(); unwatch(); };
  }
  crossOf(id) { return this.data.models.find((m) => m.id === id)?.n_cross_tokens || 0; }

  /** A title, and how we know what stands below it. */
  heading(title) { return h("h2", { class: "h3" }, title, h("em", { class: "kind" }, this.T.computed)); }

  /** A row with a label, a slider over `stops` (or a log scale) and its value; `typed` also takes numbers from the keyboard. */
  slider(name, label, { stops = null, get, set, show, log = null, typed = null }) {
    const id = `kv-${name}`, input = h("input", { type: "range", id, min: 0, step: 1 });
    const list = () => (typeof stops === "function" ? stops() : stops);
    const value = () => (log ? Math.max(1, Math.round(2 ** (+input.value / log))) : list()[+input.value]);
    const tell = () => input.setAttribute("aria-valuetext", show(get()));
    input.oninput = () => { set(value(), { commit: false }); tell(); };
    input.onchange = () => { set(value(), { commit: true }); };
    const out = typed ? h("input", { class: "input", inputmode: "numeric", "aria-label": label, autocomplete: "off" }) : h("output", { for: id });
    if (typed) out.onchange = () => this.typed(out, typed);
    const ask = typed ? h("div", { class: "ask", role: "status" }) : null;
    this.controls[name] = {
      ask,
      fill: () => {
        const all = list(), now = get();
        if (log) { input.max = Math.round(Math.log2(typed.high) * log); input.value = Math.round(Math.log2(Math.max(1, now)) * log); }
        else {
          const merged = all.includes(now) ? all : [...all, now].sort((a, b) => a - b);
          if (merged !== all) stops = typeof stops === "function" ? stops : merged;
          input.max = merged.length - 1; input.value = merged.indexOf(now);
        }
        if (typed) { if (this.root.getRootNode().activeElement !== out) out.value = this.f.int(now); } else out.textContent = show(now);
        tell();
      },
      live: () => { if (!typed) renew(out, show(get())); else if (this.root.getRootNode().activeElement !== out) out.value = this.f.int(get()); },
    };
    return [h("div", { class: "ctl" + (typed ? " wide" : "") }, h("label", { for: id }, label), input, out), ask];
  }
  /** A typed number: “128k” has two meanings, so it is asked back; anything else is taken or refused in words. */
  typed(box, { name, low, high }) {
    const ask = this.controls[name].ask, text = box.value.trim().replace(/[,\s_]/g, "");
    ask.replaceChildren();
    box.removeAttribute("aria-invalid");
    const short = /^(\d{1,6}(?:\.\d+)?)([kKmM])$/.exec(text);
    if (short) {
      const power = short[2].toLowerCase() === "k" ? 1 : 2;
      const both = [...new Set([1024, 1000].map((base) => Math.round(+short[1] * base ** power)))];
      ask.append(h("span", {}, t(this.T.ask, { text: box.value.trim() })), ...both.map((n) => h("button", { class: "btn", type: "button", onclick: () => { ask.replaceChildren(); this.take(box, name, n, low, high); } }, this.f.int(n))));
      return;
    }
    this.take(box, name, /^\d{1,16}$/.test(text) ? +text : NaN, low, high);
  }
  take(box, name, n, low, high) {
    if (Number.isSafeInteger(n) && n >= low && n <= high) { this.set({ [name]: n }); box.value = this.f.int(n); return; }
    box.setAttribute("aria-invalid", "true");
    this.controls[name].ask.replaceChildren(h("span", { class: "wrong" }, t(this.T.whole, { low: this.f.int(low), high: this.f.int(high) })));
  }
  choice(name, label, options, { get, set }) {
    const box = h("select", { id: `kv-${name}`, onchange: () => set(box.value) }, options.map(([value, text]) => h("option", { value }, text)));
    this.controls[name] = { fill: () => { box.value = String(get()); } };
    return h("div", { class: "ctl pick" }, h("label", { for: `kv-${name}` }, label), box);
  }
  number(name, label, { low, high, decimals = false, placeholder = () => "" }) {
    const box = h("input", { class: "input", id: `kv-${name}`, inputmode: decimals ? "decimal" : "numeric", autocomplete: "off" }), ask = h("div", { class: "ask", role: "status" });
    box.onchange = () => {
      const text = box.value.trim().replace(/,/g, ""), n = text === "" && decimals ? 0 : /^\d{1,15}(\.\d{1,6})?$/.test(text) ? +text : NaN;
      ask.replaceChildren(); box.removeAttribute("aria-invalid");
      if (n >= low && n <= high && (decimals || Number.isInteger(n))) { this.set({ [name]: n }); return; }
      box.setAttribute("aria-invalid", "true");
      ask.replaceChildren(h("span", { class: "wrong" }, t(this.T.whole, { low: this.f.int(low), high: this.f.int(high) })));
    };
    this.controls[name] = { ask, fill: () => { if (this.root.getRootNode().activeElement !== box) box.value = this.s[name] || (decimals && name !== "over" ? "" : this.s[name]); box.placeholder = placeholder(); } };
    return [h("div", { class: "ctl pick" }, h("label", { for: `kv-${name}` }, label), box), ask];
  }

  buildControls() {
    const T = this.T, f = this.f, s = () => this.s, int = (n) => f.int(n), limits = this.data.limits;
    const dtypes = Object.keys(this.data.dtypes).map((name) => [name, t(T.bits, { name, bits: this.bits(this.data.dtypes[name]) })]);
    const own = h("details", { class: "more" }, h("summary", {}, T.shape),
      this.slider("layers", T.n_layers, { stops: () => Array.from({ length: 160 }, (_, i) => i + 1), get: () => this.shape()[0], set: (n, o) => this.reshape(0, n, o), show: int }),
      this.slider("heads", T.n_heads, { stops: HEADS, get: () => this.shape()[1], set: (n, o) => this.reshape(1, n, o), show: int }),
      this.slider("kv_heads", T.n_kv_heads, { stops: () => divisors(this.shape()[1]), get: () => this.shape()[2], set: (n, o) => this.reshape(2, n, o), show: int }),
      this.slider("width", T.head_dim, { stops: WIDTHS, get: () => this.shape()[3], set: (n, o) => this.reshape(3, n, o), show: int }),
      this.slider("window", T.window, { stops: WINDOWS, get: () => (s().model === "manual" ? s().window : this.model.layers.find((x) => x.kind === "window")?.window || 0), set: (n, o) => { this.reshape(0, this.shape()[0], { commit: false }); this.set({ window: n, mla: "" }, o); }, show: (n) => (n ? int(n) : T.off) }),
      this.choice("pattern", T.pattern, [[0, T.pattern_all], ...[2, 3, 4, 5, 6, 8].map((n) => [n, t(T.pattern_every, { n })])], { get: () => (s().model === "manual" ? s().pattern : this.period(this.model)), set: (n) => { this.reshape(0, this.shape()[0], { commit: false }); this.set({ pattern: +n }); } }),
      this.slider("mla", T.mla, { stops: [0, ...RANKS], get: () => (s().model === "manual" && s().mla ? +s().mla.split("-")[0] : s().model !== "manual" && this.model.layers.length === 1 && this.model.layers[0].heads === 0 ? this.model.layers[0].k - 64 : 0), set: (n, o) => { this.reshape(0, this.shape()[0], { commit: false }); this.set({ mla: n ? `${n}-64` : "", window: n ? 0 : s().window }, o); }, show: (n) => (n ? `${int(n)} + 64` : T.off) }));
    const engine = h("details", { class: "more" }, h("summary", {}, T.engine_settings),
      this.number("ubatch", T.ubatch, { low: 1, high: 1e6 }), this.number("block", T.block, { low: 1, high: 1e6 }), this.number("batched", T.batched, { low: 1, high: 1e7 }));
    this.own = own;
    this.crossRow = h("div", {}, this.number("cross", T.cross, { low: 0, high: 1e9 }));
    return [
      this.slider("tokens", T.tokens, { log: 20, get: () => s().tokens, set: (n, o) => this.set({ tokens: n }, o), show: int, typed: { name: "tokens", low: 1, high: limits.tokens } }),
      this.slider("users", T.users, { stops: USERS, get: () => s().users, set: (n, o) => this.set({ users: n }, o), show: int, typed: { name: "users", low: 1, high: limits.users } }),
      this.choice("k", T.k_dtype, dtypes, { get: () => s().k, set: (k) => this.set({ k }) }),
      this.choice("v", T.v_dtype, [["", T.same], ...dtypes], { get: () => s().v, set: (v) => this.set({ v }) }),
      this.choice("tp", T.tp, [1, 2, 4, 8, 16].map((n) => [n, t(T.ranks, { n })]), { get: () => s().tp, set: (n) => this.set({ tp: +n }) }),
      this.crossRow, own, engine,
    ].flat();
  }
  bits([values, size]) { const n = (size * 8) / values; return Number.isInteger(n) ? String(n) : this.f.number(n, n * 10 === Math.round(n * 10) ? 1 : 2); }

  buildFit() {
    const T = this.T, name = (d) => (d.kind === "laptop" ? t(T.laptop, { n: d.name }) : d.name);
    const devices = ["gpu", "laptop"].map((kind) => h("optgroup", { label: T[`devices_${kind}`] }, this.data.devices.filter((d) => d.kind === kind).map((d) => h("option", { value: d.id }, name(d)))));
    const card = h("select", { id: "kv-card", onchange: () => this.set({ card: card.value, gib: 0 }) }, devices);
    this.controls.card = { fill: () => { card.value = this.s.card; } };
    this.fitFigures = h("div", { class: "figs" });
    this.budget = h("div", { class: "budget", role: "img" });
    this.fitNote = h("p", { class: "note" });
    this.map = h("canvas", { class: "map", role: "img" });
    this.mapBox = h("div", { class: "map-box" }, this.map);
    this.map.onclick = (event) => { const cell = this.cellAt(event); if (cell) this.set({ tokens: cell.tokens, users: cell.users }); };
    this.map.onpointermove = (event) => this.hover(event);
    this.map.onpointerleave = () => this.tip.hide();
    const weights = Object.keys(this.data.weight_dtypes).map((n) => [n, t(T.bits, { name: n, bits: this.bits(this.data.weight_dtypes[n]) })]);
    return h("section", { class: "card" }, h("h2", { class: "h3" }, T.fit_title), h("div", { class: "two" },
      h("div", { class: "controls" }, h("div", { class: "ctl pick" }, h("label", { for: "kv-card" }, T.card), card),
        this.number("gib", T.gib, { low: 0, high: 1e6, decimals: true, placeholder: () => this.f.number(this.device.memory_mib / 1024, 2) }),
        this.number("params", T.params, { low: 0, high: 1e6, decimals: true, placeholder: () => (this.model.n_parameters ? this.f.number(this.model.n_parameters / 1e9, 2) : "?") }),
        this.choice("weights", T.weights_dtype, weights, { get: () => this.s.weights, set: (n) => this.set({ weights: n }) }),
        this.number("over", T.over, { low: 0, high: 1e5, decimals: true }), this.fitNote),
      h("div", {}, this.budget, this.fitFigures)),
    h("h3", { class: "h4" }, T.map_title, h("em", { class: "kind" }, T.computed)), this.mapBox, this.mapLegend());
  }
  mapLegend() { return h("div", { class: "legend" }, [["fits", "fits"], ["over", "too_big"], ["here", "here"]].map(([css, key]) => h("span", {}, h("i", { class: "key-" + css }), this.T[key]))); }

  buildPictures() {
    const T = this.T, box = (title, ...children) => h("section", { class: "card" }, this.heading(title), children);
    this.growth = h("canvas", { class: "growth", role: "img" });
    this.growthWords = h("p", { class: "say" });
    this.layers = h("canvas", { class: "layers", role: "img" });
    this.layerWords = h("p", { class: "note" });
    this.layerLegend = h("div", { class: "legend" });
    this.variants = h("div", { class: "rows" }); this.variantNote = h("p", { class: "note" });
    this.engines = h("div", { class: "engine-rows" });
    this.precisions = h("div", { class: "rows" });
    const growthLegend = h("div", { class: "legend" }, ["growth_ideal", "growth_bound", "growth_free"].map((key) => h("span", {}, h("i", { class: key }), T[key])));
    return h("div", { class: "pictures" }, box(T.growth_title, this.growth, growthLegend, this.growthWords), box(T.layers_title, this.layers, this.layerLegend, this.layerWords),
      box(T.engines_title, h("p", { class: "note" }, T.engines_note), this.engines), h("div", { class: "stack" }, box(T.variants_title, this.variants, this.variantNote), box(T.precision_title, this.precisions, h("p", { class: "note" }, T.precision_note))));
  }
  buildExport() {
    const T = this.T;
    this.exports = [[T.csv, () => this.csv()], [T.png, () => this.png()]].map(([label, onclick]) => h("button", { class: "btn", type: "button", onclick }, label));
    return h("div", { class: "bar export" }, ...this.exports);
  }

  /* -- drawing -------------------------------------------------------------------------------------------------- */

  fill() {
    for (const control of Object.values(this.controls)) control.fill?.();
    this.chooser.value = this.s.model;
    this.crossRow.hidden = !this.model.layers.some((layer) => layer.kind === "cross");
    if (this.s.model === "manual") this.own.open = true;
  }
  size(n) { return this.f.bytes(Number(n)); }
  /** Both units: powers of 1024 and of 1000. */
  both(n) { const x = Number(n), power = x >= 1e9 ? [1e9, "GB"] : x >= 1e6 ? [1e6, "MB"] : x >= 1e3 ? [1e3, "kB"] : null; return this.size(n) + (power ? ` = ${this.f.number(x / power[0], 2)}\u00a0${power[1]}` : ""); }

  draw() {
    if (!this.s || !this.data) return;
    this.groups = grouped(this.model);
    for (const control of Object.values(this.controls)) control.live?.();
    let now;
    try { now = this.bytes("ideal"); renew(this.message, ""); this.mark(false); } catch (error) {
      if (!(error instanceof KvError)) throw error;
      this.message.textContent = t(this.T[error.code], { n: this.f.int(error.values.n || 0), ranks: this.s.tp });
      this.mark(true);
      return;
    }
    this.now = now;
    this.drawSource(); this.drawFormula(now); this.drawFigures(now); this.drawExamples(); this.drawFit(now); this.drawMap();
    this.drawGrowth(now); this.drawLayers(); this.drawEngines(); this.drawVariants(); this.drawPrecisions();
    this.paint(); // last: to draw, a canvas needs the page laid out, and every change of the page after that would cost another layout
  }
  /** Impossible settings have no figures: what is on the page is of earlier ones, and there is nothing to save. */
  mark(stale) {
    this.root.classList.toggle("stale", stale);
    for (const button of this.exports) button.disabled = stale;
  }
  drawSource() {
    const m = this.model, T = this.T, counts = KINDS.map((kind) => [kind, m.order.filter((i) => m.layers[i].kind === kind).length]).filter(([, n]) => n);
    const kinds = counts.map(([kind, n]) => t(T[`count_${kind}`], { n: this.f.int(n) })).join(" · ");
    const source = m.source ? t(T.source, { source: m.source }) : m.id === "running" ? T.source_running : m.id === "custom" ? T.source_custom : T.source_manual;
    renew(this.note, `${source} ${kinds}`);
  }
  term(value, label, last = false) { return h("span", { class: "term" + (last ? " result" : "") }, h("b", {}, value), h("small", {}, label)); }
  drawFormula(now) {
    const T = this.T, f = this.f, s = this.s, rows = [];
    const byte = (name) => { const [values, size] = this.data.dtypes[name]; return f.number(size / values, Number.isInteger(size / values) ? 0 : size * 10 % values ? 4 : 1).replace(/0+$/, (z) => (Number.isInteger(size / values) ? z : "")); };
    const times = () => h("span", { class: "op" }, "×");
    for (const [layer, count] of this.groups) {
      if (layer.kind === "none" || (!layer.k && !layer.v && !layer.state)) continue;
      if (layer.k || layer.v) {
        const ranks = layer.heads && s.tp > 1, heads = ranks ? Math.max(1, layer.heads / s.tp) : layer.heads, terms = [];
        const equal = layer.k === layer.v && (!s.v || s.v === s.k);
        if (equal) terms.push(this.term("2", T.k_and_v));
        terms.push(this.term(f.int(count), T[`f_${layer.kind}`]));
        if (equal && layer.heads) terms.push(this.term(f.int(heads), ranks ? T.f_heads_rank : T.f_heads), this.term(f.int(layer.k / layer.heads), T.f_width), this.term(byte(s.k), T.f_bytes));
        else if (layer.v === 0) terms.push(this.term(f.int(layer.k), T.f_latent), this.term(byte(s.k), T.f_bytes));
        else terms.push(this.term(`(${f.int(Number(rankShare(layer, layer.k, s.tp)))} × ${byte(s.k)} + ${f.int(Number(rankShare(layer, layer.v, s.tp)))} × ${byte(s.v || s.k)})`, T.f_both));
        const tokens = layer.kind === "cross" ? s.cross : layer.kind === "window" ? Math.min(s.tokens, layer.window) : s.tokens;
        terms.push(this.term(f.int(tokens), layer.kind === "cross" ? T.f_cross_tokens : layer.kind === "window" && layer.window < s.tokens ? t(T.f_window_tokens, { n: f.int(s.tokens) }) : T.f_tokens), this.term(f.int(s.users), T.f_users));
        rows.push([terms, this.bytes("ideal", {}, [[{ ...layer, state: 0 }, count]]).total]);
      }
      if (layer.state) rows.push([[this.term(f.int(count), T.f_state), this.term(f.int(layer.state / s.tp), T.f_state_values), this.term("4", T.f_bytes), this.term(f.int(s.users), T.f_users)], this.bytes("ideal", {}, [[{ ...layer, k: 0, v: 0 }, count]]).state]);
    }
    const line = ([terms, sum]) => h("div", { class: "line" }, terms.map((term, i) => (i ? h("span", { class: "pair" }, times(), term) : term)), h("span", { class: "pair" }, h("span", { class: "op" }, "="), this.term(this.size(sum), rows.length > 1 ? T.f_part : T.f_total, true)));
    const total = rows.length > 1 ? [h("div", { class: "line sum" }, h("span", { class: "op" }, "Σ"), this.term(this.size(now.total), T.f_total, true))] : [];
    renew(this.formula, rows.map(line), total);
  }
  slope() {
    const longest = Math.max(0, ...this.groups.map(([layer]) => (layer.kind === "window" ? layer.window : 0))), step = 576n;
    const at = (n) => kvBytes(this.groups, this.s, this.data.dtypes, "ideal", n, 1n), a = at(BigInt(longest)), b = at(BigInt(longest) + step);
    return { slope: Number(b.total - a.total) / Number(step), constant: a.window + a.state, longest };
  }
  figure(value, label) { return h("div", { class: "fig" }, h("b", {}, value), h("span", {}, label, h("em", { class: "kind" }, this.T.computed))); }
  drawFigures(now) {
    const { slope, constant } = this.slope(), first = Number(kvBytes(this.groups, this.s, this.data.dtypes, "ideal", 1n, 1n).total);
    const items = [[this.both(now.total), this.s.tp > 1 ? this.T.fig_total_rank : this.T.fig_total], [this.size(Math.round(slope)), this.T.fig_slope]];
    if (constant) items.push([this.both(constant), this.T.fig_constant]);
    else items.push([this.size(Number(now.total) / this.s.users), this.T.fig_each]);
    renew(this.figures, items.map(([value, label]) => this.figure(value, label)));
    this.first = first;
  }
  drawExamples() {
    const m = this.data.models.find((x) => x.id === EXAMPLE), T = this.T, f = this.f;
    if (!m) return;
    const groups = grouped(m), base = { ...this.s, k: "f16", v: "", tp: 1, cross: 0 }, bytes = (tokens, users, g = groups) => kvBytes(g, { ...base, tokens, users }, this.data.dtypes).total;
    const all = groups.map(([layer, n]) => [{ ...layer, k: (layer.k / layer.heads) * m.n_heads, v: (layer.v / layer.heads) * m.n_heads, heads: m.n_heads }, n]);
    const [vw, bw] = this.data.weight_dtypes.bf16, weights = (m.n_parameters * bw) / vw;
    const jump = (tokens, users) => () => this.set({ model: EXAMPLE, tokens, users, k: "f16", v: "", tp: 1, params: 0, weights: "bf16", cross: 0 });
    const open = this.data.revealed; // the question above asks for this figure
    const steps = [[1, 1, T.ex_token], [4096, 1, T.ex_4096], [128000, 1, T.ex_128k], [131072, 1, T.ex_128ki], [4096, 32, open ? t(T.ex_users, { weights: this.both(weights) }) : T.ex_users_hidden]];
    const rows = steps.map(([tokens, users, label]) => h("button", { class: "step", type: "button", onclick: jump(tokens, users), "aria-pressed": String(this.s.model === EXAMPLE && this.s.tokens === tokens && this.s.users === users) }, h("b", {}, users > 1 && !open ? "?" : this.both(bytes(tokens, users))), h("span", {}, label)));
    const more = Number(bytes(4096, 1, all)) / Number(bytes(4096, 1));
    rows.push(h("button", { class: "step", type: "button", onclick: () => this.set({ model: "manual", shape: [m.order.length, m.n_heads, m.n_heads, m.layers[0].k / m.layers[0].heads].join("-"), window: 0, pattern: 0, mla: "", tokens: 4096, users: 1 }) }, h("b", {}, this.both(bytes(4096, 1, all))), h("span", {}, t(T.ex_heads, { heads: m.n_heads, kv: m.layers[0].heads, times: f.int(more) }))));
    renew(this.examples, rows);
  }
  drawFit(now) {
    const T = this.T, f = this.f, memory = this.memory, weights = this.weights(), over = Math.round(this.s.over * GIB), free = this.free, known = this.parameters > 0;
    const cache = Number(now.total), full = Math.max(memory, weights + over + cache);
    const part = (css, bytes, label) => (bytes > 0 ? h("span", { class: "part " + css, style: { flexGrow: String(bytes / full * 1000) }, title: `${label} ${this.size(bytes)}` }, h("i", {}, bytes / full > 0.12 ? label : "")) : null);
    const line = full > memory ? h("s", { style: { left: `${(memory / full) * 100}%` } }) : null;
    renew(this.budget, [part("weights", weights, T.part_weights), part("over", over, T.part_over), part("cache", cache, T.part_cache), part("free", Math.max(0, memory - weights - over - cache), T.part_free), line]);
    const fits = known && cache <= free;
    this.budget.setAttribute("aria-label", t(T.budget_aria, { weights: this.size(weights), over: this.size(over), cache: this.size(cache), memory: this.size(memory) }));
    this.budget.classList.toggle("too-big", known && !fits);
    const budget = BigInt(free), n = known ? maxTokens(this.groups, budget, this.s, this.data.dtypes, "ideal") : 0n, u = known ? maxUsers(this.groups, budget, this.s, this.data.dtypes, "ideal") : 0n;
    const count = (x) => (!known ? "?" : x === null ? T.no_end : f.int(Number(x)));
    renew(this.fitFigures, this.figure(known ? this.both(weights) : "?", this.s.tp > 1 ? T.fig_weights_rank : T.fig_weights), this.figure(this.size(free), T.fig_free),
      this.figure(count(n), t(T.fig_longest, { users: f.int(this.s.users) })), this.figure(count(u), t(T.fig_most, { tokens: f.int(this.s.tokens) })));
    const device = this.device, verdict = !known ? T.params_missing : fits ? T.verdict_fits : t(T.verdict_over, { n: this.size(weights + over + cache - memory) });
    const whence = this.s.gib > 0 ? "own" : device.source, mib = f.int(Math.round(this.memory / 2 ** 20));
    renew(this.fitNote, `${verdict} ${t(T[`card_source_${whence}`], { mib })} ${T.card_over}`);
  }

  /* -- canvases ------------------------------------------------------------------------------------------------- */

  /** Colours and patterns, kept until size or theme change: the browser computes styles anew for each colour that is asked for. */
  get look() {
    if (this.looks) return this.looks;
    const c = palette(this.root), ctx = this.map.getContext("2d");
    return (this.looks = { c, out: hatch(ctx, c["decode-soft"], { gap: 6, paper: c.decode }), window: hatch(ctx, c.cache, { paper: c.card }) });
  }
  /** Draws what waits for canvases that can be seen; the others' turn comes when they come into view. */
  paint() {
    for (const [canvas, draw] of this.waiting) {
      if (this.unseen.has(canvas)) continue;
      this.waiting.delete(canvas);
      draw({ ...fitCanvas(canvas), ...this.look, unit: rem() });
    }
  }

  /** Axis numbers of bytes: short, in powers of 1024. */
  axis(max, width, gap) { const unit = max < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(max) / 10)), power = 1024 ** unit; return axisTicks(max / power, width, gap).map((x) => [x * power, `${this.f.int(x) === this.f.number(x, 0) && Number.isInteger(x) ? this.f.int(x) : this.f.number(x, x < 1 ? 2 : 1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`]); }
  /** 4096 -> 4,096; 131072 -> 128Ki: ticks that are powers of two keep their unit. */
  tokensShort(n) { return n >= 1024 && n % 1024 === 0 ? (n % 1048576 === 0 ? `${n / 1048576}Mi` : `${n / 1024}Ki`) : this.f.int(n); }

  drawGrowth(now) {
    const T = this.T, f = this.f, { tokens } = this.s, points = 64, max = Math.max(tokens * 1.25, Math.min(this.model.max_context || 0, tokens * 8), 64);
    const bytes = (engine, n) => Number(kvBytes(this.groups, this.s, this.data.dtypes, engine, BigInt(n)).total);
    const line = (engine) => Array.from({ length: points + 1 }, (_, i) => { const n = Math.round((max * i) / points); return [n, bytes(engine, n)]; });
    // The bends lie at the windows: a curve through even steps would cut their corners.
    const bends = this.groups.filter(([l]) => l.kind === "window" && l.window < max).map(([l]) => [l.window, bytes("ideal", l.window)]);
    const ideal = [...line("ideal"), ...bends].sort((a, b) => a[0] - b[0]), bound = line("no_window"), peak = 1.05 * Math.max(1, bound.at(-1)[1], ideal.at(-1)[1]);
    const free = this.parameters ? this.free : Infinity, total = Number(now.total);
    this.waiting.set(this.growth, ({ ctx, w, h: high, c, unit }) => {
      const left = 4.4 * unit, bottom = 2.6 * unit, right = 0.75 * unit, top = 0.75 * unit;
      const X = (n) => left + (n / max) * (w - left - right), Y = (b) => high - bottom - (b / peak) * (high - bottom - top);
      const trace = (data) => data.forEach(([n, b], i) => (i ? ctx.lineTo(X(n), Y(b)) : ctx.moveTo(X(n), Y(b))));
      ctx.font = `${0.75 * unit}px ${c.sans}`; ctx.lineWidth = 1; ctx.textBaseline = "middle"; ctx.strokeStyle = c.line; ctx.fillStyle = c.muted; ctx.textAlign = "right";
      for (const [value, label] of this.axis(peak, high - bottom - top, 2.6 * unit)) { ctx.beginPath(); ctx.moveTo(left, Y(value)); ctx.lineTo(w - right, Y(value)); ctx.stroke(); ctx.fillText(label, left - 0.4 * unit, Y(value)); }
      ctx.textBaseline = "top"; ctx.textAlign = "center";
      for (const n of axisTicks(max, w - left - right, 5.5 * unit)) ctx.fillText(f.int(n), Math.min(X(n), w - 2 * unit), high - bottom + 0.35 * unit);
      ctx.textAlign = "right"; ctx.fillText(T.growth_x, w - right, high - 1.05 * unit);
      ctx.beginPath(); trace(ideal); ctx.lineTo(X(max), Y(0)); ctx.lineTo(X(0), Y(0)); ctx.closePath(); ctx.fillStyle = c["cache-soft"]; ctx.fill();
      const stroke = (data, colour, dash, width) => { ctx.save(); ctx.strokeStyle = colour; ctx.setLineDash(dash); ctx.lineWidth = width; ctx.beginPath(); trace(data); ctx.stroke(); ctx.restore(); };
      stroke(bound, c.wait, [6, 4], 2); stroke(ideal, c.cache, [], 3);
      if (free < peak) stroke([[0, free], [max, free]], c.new, [2, 3], 2);
      ctx.beginPath(); ctx.arc(X(tokens), Y(total), 0.35 * unit, 0, 7); ctx.fillStyle = c.card; ctx.fill(); ctx.strokeStyle = c.ink; ctx.lineWidth = 2; ctx.stroke();
    });
    const { slope, constant, longest } = this.slope(), per = this.size(Math.round(slope * this.s.users)), size = this.size(constant * BigInt(this.s.users));
    renew(this.growthWords, longest ? t(slope ? T.growth_words_window : T.growth_words_only_window, { per, constant: size, window: f.int(longest) }) : constant ? t(T.growth_words_state, { per, constant: size }) : t(T.growth_words, { per }));
    this.growth.setAttribute("aria-label", `${T.growth_title}. ${this.growthWords.textContent}`);
  }
  drawLayers() {
    const m = this.model, T = this.T, f = this.f, n = m.order.length;
    const each = m.layers.map((layer) => Number(this.bytes("ideal", {}, [[layer, 1]]).total)), peak = Math.max(1, ...m.order.map((i) => each[i]));
    this.waiting.set(this.layers, ({ ctx, w, h: high, c, unit, window }) => {
      const px = 0.75 * unit, left = 4.4 * unit, bottom = 1.4 * unit, top = 0.5 * unit, step = (w - left - 0.5 * unit) / n, gap = step > 4 ? 1 : 0;
      const fills = { full: c.cache, window, state: c.wait, cross: c.prefill, none: c.line }, Y = (b) => high - bottom - (b / peak) * (high - bottom - top);
      ctx.font = `${px}px ${c.sans}`; ctx.textBaseline = "middle"; ctx.textAlign = "right"; ctx.strokeStyle = c.line; ctx.fillStyle = c.muted;
      for (const [value, label] of this.axis(peak, high - bottom - top, 2.4 * unit)) { ctx.beginPath(); ctx.moveTo(left, Y(value)); ctx.lineTo(w, Y(value)); ctx.stroke(); ctx.fillText(label, left - 0.4 * unit, Math.max(px / 2, Y(value))); }
      m.order.forEach((index, i) => {
        const y = each[index] ? Math.min(Y(each[index]), high - bottom - 2) : high - bottom - 2;
        ctx.fillStyle = fills[m.layers[index].kind]; ctx.fillRect(left + i * step, y, Math.max(1, step - gap), high - bottom - y);
      });
      ctx.fillStyle = c.muted; ctx.textBaseline = "top"; ctx.textAlign = "left"; ctx.fillText("1", left, high - bottom + 0.3 * unit); ctx.textAlign = "right"; ctx.fillText(t(T.layers_n, { n: f.int(n) }), w - 0.5 * unit, high - bottom + 0.3 * unit);
    });
    const present = KINDS.filter((kind) => m.order.some((i) => m.layers[i].kind === kind));
    renew(this.layerLegend, present.map((kind) => h("span", {}, h("i", { class: "key-" + kind }), T[`kind_${kind}`])));
    const shares = present.map((kind) => { const bytes = m.order.reduce((sum, i) => sum + (m.layers[i].kind === kind ? each[i] : 0), 0); return t(T.layers_share, { kind: T[`kind_${kind}`], n: m.order.filter((i) => m.layers[i].kind === kind).length, size: this.size(bytes) }); });
    renew(this.layerWords, shares.join(" "));
    this.layers.setAttribute("aria-label", `${T.layers_title}. ${this.layerWords.textContent}`);
  }
  mapCells() {
    const free = BigInt(this.free), cells = [];
    for (const users of MAP_USERS) for (const tokens of MAP_TOKENS) cells.push({ users, tokens, fits: kvBytes(this.groups, this.s, this.data.dtypes, "ideal", BigInt(tokens), BigInt(users)).total <= free });
    return cells;
  }
  mapBoxes(w, high, unit = rem()) { const left = 2.6 * unit, bottom = 2.4 * unit, cw = (w - left) / MAP_TOKENS.length, ch = (high - bottom) / MAP_USERS.length; return { left, bottom, cw, ch }; }
  cellAt(event) {
    const box = this.map.getBoundingClientRect(), { left, bottom, cw, ch } = this.mapBoxes(box.width, box.height), x = Math.floor((event.clientX - box.left - left) / cw), y = Math.floor((box.height - bottom - (event.clientY - box.top)) / ch);
    return x in MAP_TOKENS && y in MAP_USERS ? { tokens: MAP_TOKENS[x], users: MAP_USERS[y] } : null;
  }
  hover(event) {
    const cell = this.cellAt(event), box = this.map.getBoundingClientRect();
    if (!cell || !this.now) { this.tip.hide(); return; }
    const n = kvBytes(this.groups, this.s, this.data.dtypes, "ideal", BigInt(cell.tokens), BigInt(cell.users)).total;
    this.tip.show(event.clientX - box.left, event.clientY - box.top, t(this.T.map_cell, { users: this.f.int(cell.users), tokens: this.f.int(cell.tokens), size: this.both(n) }));
  }
  drawMap() {
    const cells = this.mapCells(), known = this.parameters > 0, u = Math.log2(this.s.users), v = Math.log2(this.s.tokens) - 9;
    const here = u >= 0 && u <= 8.49 && v >= -0.5 && v <= 11.49 ? [Math.round(v), Math.round(u)] : null;
    // Most moves of a slider change nothing here: it takes a factor of two to reach the next cell.
    const picture = JSON.stringify([known, here, cells.map((cell) => +cell.fits)]);
    if (this.look.map === picture) return;
    this.look.map = picture;
    this.waiting.set(this.map, ({ ctx, w, h: high, c, unit, out }) => {
      const { left, bottom, cw, ch } = this.mapBoxes(w, high, unit), px = (w < 30 * unit ? 0.625 : 0.75) * unit;
      ctx.font = `${px}px ${c.sans}`; ctx.textAlign = "center"; ctx.textBaseline = "middle"; ctx.globalAlpha = known ? 1 : 0.3;
      cells.forEach((cell) => {
        const x = left + MAP_TOKENS.indexOf(cell.tokens) * cw, y = high - bottom - (MAP_USERS.indexOf(cell.users) + 1) * ch;
        ctx.fillStyle = cell.fits ? c["cache-soft"] : out; ctx.fillRect(x + 1, y + 1, cw - 2, ch - 2);
        if (cell.fits && cw > px * 1.2) { ctx.fillStyle = c["cache-ink"]; ctx.fillText("✓", x + cw / 2, y + ch / 2); }
      });
      ctx.globalAlpha = 1; ctx.strokeStyle = c.ink; ctx.lineWidth = 2; ctx.setLineDash([4, 3]);
      if (here) ctx.strokeRect(left + here[0] * cw + 1, high - bottom - (here[1] + 1) * ch + 1, cw - 2, ch - 2);
      ctx.setLineDash([]); ctx.fillStyle = c.muted; ctx.textBaseline = "top";
      MAP_TOKENS.forEach((n, i) => { if (cw > px * 2.6 || i % 2 === 0) ctx.fillText(this.tokensShort(n), left + (i + 0.5) * cw, high - bottom + 0.3 * unit); });
      ctx.textAlign = "right"; ctx.fillText(this.T.map_x, w, high - 0.95 * unit);
      ctx.textBaseline = "middle"; MAP_USERS.forEach((n, j) => ctx.fillText(this.f.int(n), left - 0.4 * unit, high - bottom - (j + 0.5) * ch));
    });
    this.map.setAttribute("aria-label", known ? t(this.T.map_aria, { n: cells.filter((cell) => cell.fits).length, all: cells.length }) : this.T.params_missing);
  }

  /* -- rows ----------------------------------------------------------------------------------------------------- */

  row(name, bytes, top, { note = "", now = false } = {}) {
    return h("div", { class: "row" + (now ? " now" : ""), title: note || null }, h("span", { class: "name" }, name), h("span", { class: "track" }, h("u", { style: { width: `${Math.max(0.5, (Number(bytes) / Number(top || 1n)) * 100)}%` } })), h("span", {}, this.size(bytes)));
  }
  drawEngines() {
    const T = this.T, rows = ENGINES.map((name) => { try { return [name, this.bytes(name)]; } catch { return [name, null]; } }).filter(([, got]) => got), top = rows.reduce((m, [, got]) => (got.total > m ? got.total : m), 1n);
    renew(this.engines, rows.map(([name, got]) => { const key = name.replace(".", "_"); return h("div", { class: "engine" }, this.row(T[`engine_${key}`], got.total, top), h("code", { class: "log" }, this.logLine(name, got)), h("p", { class: "note" }, T[`engine_${key}_note`])); }));
  }
  /** The line in which this figure would stand in that engine's log. */
  logLine(name, got) {
    const mib = (n) => (Number(n) / 2 ** 20).toFixed(2), gib = (n) => (Number(n) / 2 ** 30).toFixed(2), s = this.s;
    if (name === "llama.cpp") {
      const cells = Math.ceil(s.tokens / 256) * 256, layers = (kind) => this.groups.filter(([l]) => l.kind === kind).reduce((sum, [, n]) => sum + n, 0);
      const lines = [["full", cells]], window = this.groups.find(([l]) => l.kind === "window")?.[0].window;
      if (window) lines.push(["window", Math.min(cells, Math.ceil((window + s.ubatch) / 256) * 256)]);
      return lines.filter(([kind]) => layers(kind)).map(([kind, n]) => `llama_kv_cache: size = ${mib(got[kind])} MiB (${n} cells, ${layers(kind)} layers, ${s.users}/${s.users} seqs), K (${s.k}) …`).join("\n") || "llama_memory_recurrent: size = " + mib(got.state) + " MiB …";
    }
    if (name === "vllm") return `To serve at least one request with the model's max seq len (${s.tokens}), ${gib(kvBytes(this.groups, s, this.data.dtypes, "vllm", BigInt(s.tokens), 1n).total)} GiB KV cache is needed …`;
    return name === "ideal" ? this.T.log_ideal : this.T.log_no_window;
  }
  drawVariants() {
    const T = this.T, shape = this.shape(), [layers, heads, kv, width] = shape, m = this.model, s = this.s;
    const plain = (n) => [[{ kind: "full", k: n * width, v: n * width, window: 0, state: 0, heads: n, parts: 0 }, layers]], latent = [[{ kind: "full", k: 576, v: 0, window: 0, state: 0, heads: 0, parts: 0 }, layers]];
    const items = [["mha", plain(heads)], ["gqa", plain(kv > 1 && kv < heads ? kv : Math.max(1, heads % 8 === 0 ? 8 : heads % 4 === 0 ? heads / 4 : heads))], ["mqa", plain(1)], ["mla", latent]];
    const sizes = items.map(([key, groups]) => { try { return [key, this.bytes("ideal", {}, groups).total, groups[0][0].heads]; } catch { return null; } }).filter(Boolean), top = sizes[0]?.[1] ?? 1n;
    const uniform = m.layers.length === 1, own = this.now.total;
    renew(this.variants, sizes.map(([key, n, count]) => this.row(t(T[`variant_${key}`], { n: count }), n, top, { now: uniform && n === own })), uniform ? null : this.row(T.variant_own, own, top, { now: true }));
    renew(this.variantNote, t(T.variants_note, { layers, width, rank: 512, rope: 64 }));
  }
  drawPrecisions() {
    const items = Object.keys(this.data.dtypes).map((k) => [k, this.bytes("ideal", { k, v: "" }).total]), top = items[0][1];
    renew(this.precisions, items.map(([k, n]) => this.row(t(this.T.bits, { name: k, bits: this.bits(this.data.dtypes[k]) }), n, top, { now: k === this.s.k && (!this.s.v || this.s.v === k) })));
  }

  /* -- files ---------------------------------------------------------------------------------------------------- */

  save(blob, name) {
    const link = h("a", { href: URL.createObjectURL(blob), download: name });
    this.root.append(link); link.click(); link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  csv() {
    const quote = (x) => (/[",\n]/.test(String(x)) || /^[=+\-@]/.test(String(x)) ? `"${String(x).replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"` : x), rows = [["quantity", "value", "unit"]];
    const m = this.model, add = (name, value, unit) => rows.push([name, value, unit]);
    add("model", m.name || "manual", ""); add("layers", m.order.length, "layers");
    for (const key of ["tokens", "users", "cross", "k", "v", "tp", "ubatch", "block", "batched"]) add(key, this.s[key], key === "tokens" ? "tokens per user" : "");
    for (const engine of ENGINES) { const got = this.bytes(engine); for (const kind of ["full", "window", "state", "cross", "total"]) add(`${engine} ${kind}`, got[kind], "bytes"); }
    const { slope, constant } = this.slope();
    add("slope per user", slope, "bytes per token"); add("constant per user", constant, "bytes");
    add("device memory", this.memory, "bytes"); add("weights", this.weights(), "bytes"); add("overhead", Math.round(this.s.over * GIB), "bytes"); add("free for the cache", this.free, "bytes");
    for (const k of Object.keys(this.data.dtypes)) add(`cache in ${k}`, this.bytes("ideal", { k, v: "" }).total, "bytes");
    m.order.forEach((index, i) => add(`layer ${i + 1} (${m.layers[index].kind})`, this.bytes("ideal", {}, [[m.layers[index], 1]]).total, "bytes"));
    this.save(new Blob(["\ufeff" + rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n"], { type: "text/csv;charset=utf-8" }), `kv-memory-${m.id}-${this.s.tokens}.csv`);
  }
  png() {
    this.unseen.clear(); this.paint(); // the picture has those too that nobody has scrolled to
    const c = palette(this.root), ratio = window.devicePixelRatio || 1, parts = [[this.growth, this.T.growth_title], [this.layers, this.T.layers_title], [this.map, this.T.map_title]], pad = 24 * ratio, title = 34 * ratio;
    const width = Math.max(...parts.map(([canvas]) => canvas.width)) + 2 * pad, height = parts.reduce((sum, [canvas]) => sum + canvas.height + title + pad, 2 * pad + title);
    const sheet = h("canvas", { width, height }), ctx = sheet.getContext("2d");
    ctx.fillStyle = c.card; ctx.fillRect(0, 0, width, height); ctx.fillStyle = c.ink; ctx.textBaseline = "top";
    ctx.font = `650 ${17 * ratio}px ${c.sans}`; ctx.fillText(`${this.model.name || this.T.manual}: ${this.both(this.now.total)}`, pad, pad);
    let y = pad + title + pad / 2;
    for (const [canvas, label] of parts) { ctx.font = `600 ${14 * ratio}px ${c.sans}`; ctx.fillText(label, pad, y); y += title; ctx.drawImage(canvas, pad, y); y += canvas.height + pad; }
    sheet.toBlob((blob) => blob && this.save(blob, `kv-memory-${this.model.id}-${this.s.tokens}.png`), "image/png");
  }
  async read(file) {
    if (!file) return;
    const tell = (key, values = {}) => { this.message.textContent = t(this.T[key], values); };
    try {
      const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
      if (String.fromCharCode(...start) === "GGUF") { tell("file_reading"); this.sendFile({ name: file.name.slice(0, 60), table: await ggufTable(file) }); return; }
      if (file.size > 1e6) { tell("file_big"); return; }
      this.sendFile({ name: file.name === "config.json" ? "" : file.name.slice(0, 60), text: await file.text() });
    } catch (error) { tell(error instanceof KvError ? error.code : "file_bad"); }
  }
}

/** Gives `node` these children, but touches only what differs from those it has: what stays the same needs no new layout, and a
 *  button that is being used keeps its focus. */
function renew(node, ...children) {
  const fresh = children.flat().filter(Boolean).map((child) => (typeof child === "string" ? document.createTextNode(child) : child)), old = [...node.childNodes];
  old.slice(fresh.length).forEach((child) => child.remove());
  fresh.forEach((child, i) => (i < old.length ? become(old[i], child) : node.append(child)));
}
function become(old, fresh) {
  if (old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
  if (old.nodeName === "#text") { if (old.data !== fresh.data) old.data = fresh.data; return; }
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  old.onclick = fresh.onclick;
  renew(old, ...fresh.childNodes);
}

function divisors(n) { return Array.from({ length: n }, (_, i) => i + 1).filter((d) => n % d === 0); }

/** The metadata table of a GGUF file, without its vocabulary. Nothing is executed, the weights are not read, and the file may
 *  be of any size: only its first megabytes are looked at. */
async function ggufTable(file) {
  const LIMIT = 48 * 2 ** 20, buffer = await file.slice(0, LIMIT).arrayBuffer(), view = new DataView(buffer), decoder = new TextDecoder();
  let at = 4;
  const take = (n) => { if (!(n >= 0) || at + n > buffer.byteLength) throw new KvError("file_bad"); at += n; return at - n; };
  const long = () => { const n = view.getBigUint64(take(8), true); if (n > BigInt(LIMIT)) throw new KvError("file_bad"); return Number(n); };
  const text = () => { const n = long(), from = take(n); return decoder.decode(new Uint8Array(buffer, from, n)); };
  const SIZES = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8], READ = ["getUint8", "getInt8", "getUint16", "getInt16", "getUint32", "getInt32", "getFloat32", "getUint8", null, null, "getBigUint64", "getBigInt64", "getFloat64"];
  const scalar = (kind) => { if (!SIZES[kind]) throw new KvError("file_bad"); const value = view[READ[kind]](take(SIZES[kind]), true); return kind === 7 ? Boolean(value) : typeof value === "bigint" ? Number(value) : value; };
  const version = view.getUint32(take(4), true), table = {};
  if (version < 2 || version > 3) throw new KvError("file_bad");
  take(8);
  for (let left = long(); left > 0; left--) {
    const key = text(), kind = view.getUint32(take(4), true);
    let value = null;
    if (kind === 8) value = text();
    else if (kind === 9) {
      const inner = view.getUint32(take(4), true), count = long();
      if (inner === 8) for (let i = 0; i < count; i++) take(long());
      else if (count <= 10000) value = Array.from({ length: count }, () => scalar(inner));
      else take(count * (SIZES[inner] || NaN));
    } else value = scalar(kind);
    if (!key.startsWith("tokenizer.") && value !== null && key.length < 200 && String(value).length < 60000) table[key] = value;
  }
  return table;
}

export default function (component) {
  const { data, parentElement, setStateValue, setTriggerValue } = opened(component);
  const calculator = instance(parentElement, (root) => new Calculator(root));
  calculator.receive(data, (value) => setStateValue("settings", value), (value) => setTriggerValue("file", value));
}
