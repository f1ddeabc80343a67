/* The attention viewer: any layer and head of a run; point at a token to see where it looks, click to pin it.
 *
 * Python sends the queries and keys of one layer, the browser does the attention: softmax(q·k × scale) over the positions
 * that the mask leaves. So all heads of the layer are at hand without another message, and what is sent grows with the
 * number of tokens, not with its square: (n_heads + n_kv_heads) × head_dim × 2 bytes per position. For the default model
 * that is 1,536 B: 94 kB for 61 tokens, 393 kB for 256, 786 kB for the 512 positions that are traced at most.
 *
 * DATA (built by pages/views/prefill_attention.py)
 * {
 *   q, k,                        16-bit floats as uint16: (n_heads, n, head_dim) and (n_kv_heads, n, head_dim)
 *   meta: {
 *     layer, head,               0-based; head is where to start, later the browser decides
 *     n, n_prompt, n_all,        positions shown; prompt tokens; positions of the run
 *     n_layers, n_heads, n_kv_heads, head_dim, scale, window,
 *     tokens: [{text, hex, special, template}],
 *     sinks: [n_layers], even,   mean share of the first token per layer; what it would be if every row were even
 *     run, lang, text: {…}
 *   }
 * }
 * Sends setTriggerValue("layer", i) and setTriggerValue("head", i), 0-based. Triggers, because Python can move both too: a state that
 * still held an earlier choice would not notice the same choice again.
 *
 * TEXT  aria layer layer_value {i} {n} sinks_label sinks_note {even} heads_label head {i} tokens_label token_label {i} {text}
 *       map {layer} {head} map_note scale looks {token} pinned others {n} sink {token} {head} {share} {even} alone cell {from} {to} {share}
 *       shown {n} {all}
 */

const TOP = 6;
const HALF = new Float32Array(65536);
let halfReady = false;

/** 16-bit floats → 32-bit, by a table made once. */
function fromHalf(bits) {
  if (!halfReady) {
    for (let i = 0; i < 65536; i++) {
      const sign = i & 0x8000 ? -1 : 1, exponent = (i >> 10) & 31, fraction = i & 1023;
      HALF[i] = sign * (exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15));
    }
    halfReady = true;
  }
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = HALF[bits[i]];
  return out;
}

/** Attention of one head: n × n, row i sums to 1 over columns 0 … i. */
function attention(q, k, meta, head) {
  const { n, head_dim: d, scale, window } = meta, kv = Math.floor(head / (meta.n_heads / meta.n_kv_heads)), out = new Float32Array(n * n);
  for (let i = 0; i < n; i++) {
    const first = window ? Math.max(0, i - window + 1) : 0, qi = (head * n + i) * d;
    let top = -Infinity, sum = 0;
    for (let j = first; j <= i; j++) {
      const kj = (kv * n + j) * d;
      let dot = 0;
      for (let x = 0; x < d; x++) dot += q[qi + x] * k[kj + x];
      out[i * n + j] = dot * scale;
      if (dot * scale > top) top = dot * scale;
    }
    for (let j = first; j <= i; j++) sum += out[i * n + j] = Math.exp(out[i * n + j] - top);
    for (let j = first; j <= i; j++) out[i * n + j] /= sum;
  }
  return out;
}

/** Mean share of the first token over the rows after it (1 if there is no other token). */
function sinkShare(map, n) {
  if (n < 2) return 1;
  let sum = 0;
  for (let i = 1; i < n; i++) sum += map[i * n];
  return sum / (n - 1);
}

function buildView(root) {
  const q = (selector) => root.querySelector(selector);
  const s = { root, label: q(".layer-name"), sinks: q(".sinks"), slider: q(".layer"), output: q("output"), sinksNote: q(".sinks-note"), heads: q(".heads"), tokens: q(".tokens"), strip: q(".strip"),
    mapTitle: q(".map-title"), map: q(".map"), scale: q(".scale-note"), who: q(".who"), rows: q(".rows"), say: q(".sink-say"), pin: null, hover: null, head: 0, wanted: null };
  s.tip = tooltip(root);
  s.slider.oninput = () => { s.output.textContent = t(s.text.layer_value, { i: s.slider.value, n: s.meta.n_layers }); markLayer(s, +s.slider.value - 1); };
  s.slider.onchange = () => chooseLayer(s, +s.slider.value - 1);
  bindTokens(s);
  s.map.onpointermove = (event) => pointMap(s, event);
  s.map.onpointerleave = () => { s.tip.hide(); hover(s, null); };
  s.map.onclick = (event) => { const at = cellAt(s, event); if (at) togglePin(s, at.i); };
  watch(root, () => { s.colours = null; if (s.meta && root.isConnected) draw(s, true); });
  return s;
}

function chooseLayer(s, layer) {
  if (layer === (s.wanted ?? s.meta.layer)) return;
  s.root.classList.add("busy");
  s.wanted = layer;
  s.send("layer", layer);
}

/** One stop for Tab; arrows move, Enter or Space pins, Escape lets go. */
function bindTokens(s) {
  const index = (event) => { const node = event.target.closest(".token"); return node ? +node.dataset.j : null; };
  s.tokens.onpointerover = (event) => { if (event.pointerType !== "touch") hover(s, index(event)); };
  s.tokens.onpointerleave = () => hover(s, null);
  s.tokens.addEventListener("focusin", (event) => hover(s, index(event))); // focus events have no on… property
  s.tokens.addEventListener("focusout", () => hover(s, null));
  s.tokens.onclick = (event) => { const j = index(event); if (j !== null) togglePin(s, j); };
  s.tokens.onkeydown = (event) => {
    const j = index(event), n = s.nodes.length, moves = { ArrowRight: j + 1, ArrowLeft: j - 1, Home: 0, End: n - 1 };
    if (event.key === "Escape") { s.pin = null; draw(s); return; }
    if (j === null || !(event.key in moves)) return;
    const next = Math.max(0, Math.min(n - 1, moves[event.key]));
    rove(s, next); s.nodes[next].focus(); event.preventDefault();
  };
}

function rove(s, j) { s.nodes.forEach((node, i) => { node.tabIndex = i === j ? 0 : -1; }); }
function hover(s, j) { if (j !== s.hover) { s.hover = j; if (s.meta) draw(s); } }
function togglePin(s, j) { s.pin = s.pin === j ? null : j; s.hover = null; rove(s, j); draw(s); }
/** The token whose row is shown: pointed at, else pinned, else the last one of the prompt. */
function active(s) { return s.hover ?? s.pin ?? Math.min(s.meta.n_prompt, s.meta.n) - 1; }
function name(s, j) { const token = s.meta.tokens[j]; return showToken(token.text, token.hex, token); }
function mapOf(s, head) { return (s.maps[head] ||= attention(s.q, s.k, s.meta, head)); }

function cellAt(s, event) {
  const n = s.meta.n, i = Math.floor((event.offsetY / s.map.clientHeight) * n), j = Math.floor((event.offsetX / s.map.clientWidth) * n);
  return i >= 0 && i < n && j >= 0 && j < n ? { i, j } : null;
}

function pointMap(s, event) {
  const at = cellAt(s, event);
  if (!at || event.pointerType === "touch") return;
  hover(s, at.i);
  if (at.j > at.i) return s.tip.hide();
  const map = s.map.getBoundingClientRect(), home = s.root.getBoundingClientRect(), share = mapOf(s, s.head)[at.i * s.meta.n + at.j];
  s.tip.show(event.clientX - home.left, event.clientY - home.top - (map.height ? 4 : 0), t(s.text.cell, { from: name(s, at.i), to: name(s, at.j), share: s.f.percent(share) }));
}

// ---- drawing ---------------------------------------------------------------------------------------------------------

function rgb(colour) { return colour.match(/[\d.]+/g).slice(0, 3).map(Number); }

/** One map as an n × n picture: from the surface's colour to the cache colour, square-root scale so that small shares show. */
function picture(s, head) {
  const n = s.meta.n, map = mapOf(s, head), canvas = document.createElement("canvas"), a = rgb(s.colours.soft), b = rgb(s.colours.cache);
  canvas.width = canvas.height = n;
  const ctx = canvas.getContext("2d"), image = ctx.createImageData(n, n);
  for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
    const x = Math.sqrt(map[i * n + j]), at = (i * n + j) * 4;
    for (let c = 0; c < 3; c++) image.data[at + c] = a[c] + (b[c] - a[c]) * x;
    image.data[at + 3] = 255;
  }
  ctx.putImageData(image, 0, 0);
  return canvas;
}

function paint(canvas, image) {
  const { ctx, w, h } = fitCanvas(canvas);
  ctx.imageSmoothingEnabled = image.width > w;
  ctx.drawImage(image, 0, 0, w, h);
  return { ctx, w, h };
}

function draw(s, all = false) {
  s.colours ||= palette(s.root);
  if (all) { s.pictures = []; drawHeads(s); }
  drawTokens(s); drawMap(s); drawReading(s);
}

function drawHeads(s) {
  s.headNodes.forEach(({ canvas, share }, head) => {
    paint(canvas, (s.pictures[head] ||= picture(s, head)));
    share.textContent = s.f.percent(sinkShare(mapOf(s, head), s.meta.n));
  });
}

function drawMap(s) {
  s.map.style.width = `min(100%, ${Math.min(30, 3 * s.meta.n)}rem)`; // a prompt of one token needs no large square
  const { ctx, w } = paint(s.map, (s.pictures[s.head] ||= picture(s, s.head))), n = s.meta.n, cell = w / n, i = active(s), c = s.colours;
  ctx.strokeStyle = c.line; ctx.lineWidth = 1; ctx.beginPath(); ctx.moveTo(0, 0);
  for (let x = 0; x < n; x++) { ctx.lineTo((x + 1) * cell, x * cell); ctx.lineTo((x + 1) * cell, (x + 1) * cell); }
  ctx.lineTo(0, w); ctx.closePath(); ctx.stroke();
  ctx.strokeStyle = c.ink; ctx.lineWidth = 1.5;
  ctx.strokeRect(0.75, i * cell - 0.5, Math.max(3, (i + 1) * cell), Math.max(3, cell + 1));
  if (n >= 12) markSink(s, ctx, cell);
  s.mapTitle.replaceChildren(t(s.text.map, { layer: s.meta.layer + 1, head: s.head + 1 }), h("small", {}, s.text.map_note));
  s.map.setAttribute("aria-label", t(s.text.map, { layer: s.meta.layer + 1, head: s.head + 1 }) + ". " + s.text.scale);
}

/** Beside the first column, where the mask leaves room. */
function markSink(s, ctx, cell) {
  const unit = rem(), y = 0.75 * unit, x = Math.max(cell, y) + unit, c = s.colours;
  ctx.strokeStyle = ctx.fillStyle = c["cache-ink"]; ctx.lineWidth = 1; ctx.beginPath(); ctx.moveTo(cell / 2, y); ctx.lineTo(x - 4, y); ctx.stroke();
  ctx.beginPath(); ctx.arc(cell / 2, y, 2.5, 0, 7); ctx.fill();
  ctx.font = `600 ${0.75 * unit}px ${c.sans}`; ctx.textBaseline = "middle";
  ctx.fillText(t(s.text.sink_mark, { share: s.f.percent(sinkShare(mapOf(s, s.head), s.meta.n)) }), x, y); ctx.textBaseline = "alphabetic";
}

function drawTokens(s) {
  const n = s.meta.n, i = active(s), map = mapOf(s, s.head);
  s.nodes.forEach((node, j) => {
    const share = j <= i ? map[i * n + j] : 0, token = s.meta.tokens[j];
    const weight = Math.sqrt(share).toFixed(3), look = `token${j > i ? " later" : ""}${j === i ? " on" : ""}${share > 0.02 ? " tinted" : ""}${token.special ? " special" : ""}${token.template ? " template" : ""}`;
    // Only what changed is written: there may be 512 of these, redrawn as the pointer moves.
    if (node.weight !== weight) node.style.setProperty("--w", (node.weight = weight));
    if (node.className !== look) node.className = look;
    if (node.pinned !== (s.pin === j)) node.setAttribute("aria-pressed", (node.pinned = s.pin === j));
    const text = j <= i && share >= 0.0095 ? s.f.int(share * 100) + "\u00a0%" : "";
    if (node.lastChild.textContent !== text) node.lastChild.textContent = text;
  });
}

function drawReading(s) {
  const { text, f, meta } = s, n = meta.n, i = active(s), map = mapOf(s, s.head), shares = Array.from({ length: i + 1 }, (_, j) => [j, map[i * n + j]]);
  s.who.replaceChildren(...around(text.looks, "token", h("code", {}, name(s, i))), s.pin === i ? h("span", { class: "kind" }, text.pinned) : "", h("span", { class: "kind" }, text.computed));
  const top = shares.sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, TOP).filter(([, p]) => p >= 0.0005), rest = i + 1 - top.length;
  const row = (label, p, extra = "") => h("div", { class: "row " + extra }, h("code", { title: label }, label), h("div", { class: "track" }, h("u", { style: { width: `${Math.min(100, p * 100)}%` } })), h("span", {}, f.percent(p)));
  const rows = top.map(([j, p]) => row(name(s, j), p));
  if (rest > 0) rows.push(row(t(text.others, { n: f.int(rest) }), Math.max(0, 1 - top.reduce((sum, x) => sum + x[1], 0)), "rest"));
  s.rows.replaceChildren(...rows);
  const share = sinkShare(map, n);
  s.say.replaceChildren(...(n < 2 ? [text.alone] : [t(text.sink, { token: name(s, 0), head: s.head + 1, share: f.percent(share), even: f.percent(meta.even) }), h("span", { class: "kind" }, text.computed)]));
}

/** "… {token} …" with an element in the place of the placeholder. */
function around(template, key, node) { const [before, after = ""] = String(template).split(`{${key}}`); return [before, node, after]; }

function markLayer(s, layer) { [...s.sinks.children].forEach((bar, i) => bar.classList.toggle("on", i === layer)); }

function drawLayers(s) {
  const { meta, text } = s, n = meta.n_layers;
  s.sinks.setAttribute("viewBox", `0 0 ${n} 1`);
  s.sinks.setAttribute("aria-label", text.sinks_label);
  s.sinks.replaceChildren(...meta.sinks.map((share, i) => svg("rect", { x: i + 0.12, y: 1 - Math.max(0.03, share), width: 0.76, height: Math.max(0.03, share) })));
  [...s.sinks.children].forEach((bar, i) => { bar.onclick = () => chooseLayer(s, i); });
  s.slider.style.setProperty("--n", n);
  s.slider.max = n; s.slider.value = meta.layer + 1; s.slider.disabled = n < 2;
  s.slider.setAttribute("aria-valuetext", t(text.layer_value, { i: meta.layer + 1, n }));
  s.output.textContent = t(text.layer_value, { i: meta.layer + 1, n });
  markLayer(s, meta.layer);
}

function buildParts(s) {
  const { meta, text } = s;
  s.root.setAttribute("aria-label", text.aria); s.label.textContent = text.layer; s.heads.setAttribute("aria-label", text.heads_label); s.tokens.setAttribute("aria-label", text.tokens_label);
  s.sinksNote.textContent = t(text.sinks_note, { even: s.f.percent(meta.even) });
  s.scale.textContent = [text.scale, meta.n < meta.n_all ? t(text.shown, { n: s.f.int(meta.n), all: s.f.int(meta.n_all) }) : ""].join(" ");
  s.headNodes = Array.from({ length: meta.n_heads }, (_, i) => {
    const canvas = h("canvas", { "aria-hidden": "true" }), share = h("small");
    const node = h("button", { class: "head", type: "button", "aria-pressed": i === s.head, onclick: () => chooseHead(s, i) }, canvas, h("span", {}, t(text.head, { i: i + 1 }), share));
    return { node, canvas, share };
  });
  s.heads.replaceChildren(...s.headNodes.map((x) => x.node));
  s.nodes = meta.tokens.map((token, j) => h("button", { class: "token", type: "button", tabindex: j === active(s) ? 0 : -1, dataset: { j }, "aria-pressed": false,
    "aria-label": t(text.token_label, { i: j + 1, text: name(s, j) }) }, h("b", {}, name(s, j)), h("small", {})));
  s.tokens.replaceChildren(...s.nodes);
}

function chooseHead(s, head) {
  s.head = head;
  s.headNodes.forEach((x, i) => x.node.setAttribute("aria-pressed", i === head));
  draw(s);
  s.send("head", head);
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = opened(component), s = instance(parentElement, buildView);
  if (!data?.meta) return;
  const { meta } = data, fresh = meta.run !== s.run, spoken = JSON.stringify(meta.text) !== s.spoken, moved = fresh || meta.layer !== s.meta?.layer, asked = meta.ask !== s.asked;
  // The answer to an earlier choice must not undo a later one: its own answer is on the way.
  if (!fresh && !asked && !spoken && (s.wanted ?? meta.layer) !== meta.layer) return;
  Object.assign(s, { meta, text: meta.text, run: meta.run, asked: meta.ask, spoken: JSON.stringify(meta.text), f: formats(meta.lang), send: setTriggerValue, wanted: null });
  s.root.classList.remove("busy");
  if (fresh) { s.pin = null; s.hover = null; }
  if (fresh || asked) s.head = Math.min(meta.head, meta.n_heads - 1);
  if (moved) { s.q = fromHalf(column(data.q)); s.k = fromHalf(column(data.k)); s.maps = []; }
  if (fresh || spoken) buildParts(s);
  s.headNodes.forEach((x, i) => x.node.setAttribute("aria-pressed", i === s.head));
  drawLayers(s);
  draw(s, true);
}
