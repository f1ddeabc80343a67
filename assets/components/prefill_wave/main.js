/* The prefill wave: positions × layers, in the run's own times.
 *
 * All positions of a pass are in the same layer at the same time; the layers follow one another. Beside it the causal
 * mask: one row per token that looks, one column per token that is looked at, filled as the layers go by. After the prompt
 * come a few decode passes, so that one can see the difference: a single column climbs the same layers.
 *
 * DATA (built by pages/views/prefill_wave.py)
 * {
 *   tokens: [{text, hex, special, template}],  the prompt's, then those that the shown decode passes read
 *   n_prompt, n_layers,
 *   windows: [n | null],         per layer: how many latest positions may be looked at; null = all
 *   steps: [{phase, n_before, n_input,         "prefill" | "decode"; positions cached before; positions of this pass
 *            chooses,                          whether the pass ended with a chosen token
 *            t0, t1, layers: [n_layers + 1],   seconds: start, end; start of each layer and end of the last one
 *            pairs: [n_layers]}],              attention pairs per head in each layer
 *   run, lang, text: {…}
 * }
 * A pass has n_layers + 2 stages: tokens become vectors, layer 1 … n, logits of the last position. The player steps
 * through the stages of all passes. The rows of the grid are the stages.
 *
 * TEXT  aria grid grid_note mask mask_note prefill_short decode_short embed layer_of {i} {n} logits logits_unused at_once {n} chunk {i} {n}
 *       slower {n} as_fast ready fig_time fig_positions fig_layers fig_pairs measured computed legend_prefill legend_decode
 *       legend_new legend_out sees {token} {n} {masked} token_label {i} {text} state {layer} {n} {positions} row_embed row_logits
 *       + the player's own
 */

const SPEEDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1];
const PLAY_S = 9; // about how long a whole play takes at the speed that is chosen first

function stagesOf(data) { return data.n_layers + 2; }

/** Seconds of stage k of a pass. */
function stageSeconds(step, k) {
  const from = k === 0 ? step.t0 : step.layers[k - 1], to = k === 0 ? step.layers[0] : step.layers[k] ?? step.t1;
  return Math.max(0, to - from);
}

/** Where the player is: {pass, done} finished stages of the current pass, and `row`, the stage to point at. */
function placeOf(s) {
  const per = stagesOf(s.data), p = s.player.position, atEnd = p >= s.data.steps.length * per;
  const moving = s.player.playing && !atEnd;
  let pass = Math.floor(p / per), done = p % per;
  if (pass > 0 && done === 0 && (atEnd || !moving)) { pass -= 1; done = per; } // a finished pass rather than one that has not begun
  const row = moving ? done : done - 1;
  return { pass, done, row, moving, fraction: moving && !reducedMotion() ? s.player.fraction : 0 };
}

function doneRows(s, place, pass) { return pass < place.pass ? stagesOf(s.data) : pass === place.pass ? place.done : 0; }
function passOf(data, column) { return data.steps.findIndex((step) => column >= step.n_before && column < step.n_before + step.n_input); }
function sees(data, layer, i) { const w = data.windows[layer]; return w ? Math.max(0, i - w + 1) : 0; }

function buildWave(root) {
  const q = (selector) => root.querySelector(selector);
  const s = { root, pill: q(".pill"), what: q(".what"), slow: q(".slow"), strip: q(".strip"), chips: q(".chips"), grid: q(".grid"), mask: q(".mask"),
    gridTitle: q(".grid-title"), maskTitle: q(".mask-title"), controls: q(".controls"), marks: q(".marks"), figs: q(".figs"), look: null, nodes: [] };
  s.player = new Player({ onChange: (p, why) => { if (s.data) drawWave(s, why); } });
  // The page opens on the finished prefill; from there, Play means: from the beginning.
  s.player.play = () => { if (s.opening) { s.player.position = 0; s.player.fraction = 0; } s.opening = false; Player.prototype.play.call(s.player); };
  s.player.go = (position, options) => { s.opening = false; Player.prototype.go.call(s.player, position, options); };
  s.say = announcer(root);
  s.tip = tooltip(root);
  bindKeys(root, s.player, { skip: (target) => target.closest && target.closest(".chips") });
  bindPointer(s, s.grid, (event) => columnAt(s, event.offsetX), (event) => goTo(s, event));
  bindPointer(s, s.mask, (event) => maskRowAt(s, event.offsetY));
  bindChips(s);
  watch(root, () => { s.colours = null; if (s.data && root.isConnected) drawWave(s, "data"); });
  return s;
}

function bindPointer(s, canvas, find, click = null) {
  canvas.onpointermove = (event) => look(s, find(event), { x: canvas.offsetLeft + event.offsetX, y: canvas.offsetTop + event.offsetY, canvas });
  canvas.onpointerleave = () => look(s, null);
  if (click) canvas.onclick = click;
}

/** One stop for Tab; the arrows move between the chips. */
function bindChips(s) {
  const index = (event) => { const node = event.target.closest(".chip"); return node ? +node.dataset.j : null; };
  const find = (event) => { const j = index(event); if (j !== null) look(s, j); }, leave = () => look(s, null);
  // Focus events have no on… property; this runs once per mount.
  for (const kind of ["focusin", "pointerover"]) s.chips.addEventListener(kind, find);
  for (const kind of ["focusout", "pointerleave"]) s.chips.addEventListener(kind, leave);
  s.chips.onkeydown = (event) => {
    const j = index(event), n = s.nodes.length, moves = { ArrowRight: j + 1, ArrowLeft: j - 1, Home: 0, End: n - 1 };
    if (j === null || !(event.key in moves)) return;
    const next = s.nodes[Math.max(0, Math.min(n - 1, moves[event.key]))];
    s.nodes[j].tabIndex = -1; next.tabIndex = 0; next.focus();
    event.preventDefault();
  };
}

function look(s, j, at = null) {
  if (!s.data) return;
  if (j !== null && (j < 0 || j >= s.data.tokens.length)) j = null;
  if (j !== s.look) { s.look = j; drawWave(s, "data"); }
  if (j === null || !at) return s.tip.hide();
  const parent = at.canvas.getBoundingClientRect(), home = s.root.getBoundingClientRect();
  s.tip.show(at.x + parent.left - home.left - at.canvas.offsetLeft, at.y + parent.top - home.top - at.canvas.offsetTop, sentence(s, j));
}

function sentence(s, j) {
  const token = s.data.tokens[j], first = sees(s.data, Math.max(0, layerNow(s)), j);
  return t(s.text.sees, { token: showToken(token.text, token.hex, token), n: s.f.int(j + 1 - first), masked: s.f.int(s.data.tokens.length - 1 - j) });
}

function layerNow(s) { return Math.max(0, Math.min(s.data.n_layers - 1, placeOf(s).row - 1)); }

// ---- geometry --------------------------------------------------------------------------------------------------------

function gridBox(s) {
  const unit = rem(), w = s.grid.clientWidth, h = s.grid.clientHeight, narrow = w < 30 * unit, left = (narrow ? 2.25 : 3.25) * unit;
  const bars = (narrow ? 2.5 : 4) * unit, rows = stagesOf(s.data), n = s.data.tokens.length;
  const cw = Math.min(1.75 * unit, (w - left - bars - 0.5 * unit) / n);
  return { unit, w, h, left, bars, rows, n, rh: h / rows, cw, right: left + cw * n };
}

function columnAt(s, x) { const g = gridBox(s), j = Math.floor((x - g.left) / g.cw); return j >= 0 && j < g.n ? j : null; }
function maskSide(s) { return Math.min(s.mask.clientWidth, s.mask.clientHeight, rem(3) * s.data.tokens.length); }
function maskRowAt(s, y) { return Math.floor((y / maskSide(s)) * s.data.tokens.length); }

/** A click in the grid goes to that layer of that pass. */
function goTo(s, event) {
  const g = gridBox(s), column = columnAt(s, event.offsetX), pass = column === null ? placeOf(s).pass : passOf(s.data, column);
  const row = g.rows - 1 - Math.floor(event.offsetY / g.rh);
  if (pass >= 0) s.player.go(pass * g.rows + Math.max(0, Math.min(g.rows - 1, row)) + 1);
}

// ---- drawing ---------------------------------------------------------------------------------------------------------

function drawWave(s, why) {
  if (why === "play" && reducedMotion() && s.drawn === s.player.position) return;
  s.drawn = s.player.position;
  s.colours ||= palette(s.root);
  const place = placeOf(s);
  dressChips(s, place); drawGrid(s, place); drawMask(s, place); drawHead(s, place); drawFigures(s, place);
  if (why === "commit") s.say(s.grid.getAttribute("aria-label"));
}

function dressChips(s, place) {
  const per = stagesOf(s.data);
  const writing = s.data.steps[place.pass]?.phase === "decode" || (place.done >= per && place.row > 0);
  if (s.writing !== writing) { s.writing = writing; s.strip.scrollTop = writing ? s.strip.scrollHeight : 0; }
  s.strip.style.setProperty("--f", Math.min(1, (place.done + place.fraction) / per).toFixed(3));
  s.nodes.forEach((node, j) => {
    const pass = passOf(s.data, j), done = doneRows(s, place, pass), phase = s.data.steps[pass]?.phase ?? "prefill";
    const state = done >= per ? "phase-" + phase : pass === place.pass && (done || place.moving) ? `reading by-${phase}` : "unread";
    const chosen = state === "unread" && isChosen(s, place, j);
    const seen = s.look === null ? "" : j === s.look ? " looking" : j > s.look || j < sees(s.data, layerNow(s), s.look) ? " hidden-from" : "";
    const wanted = `chip ${chosen ? "phase-new" : state}${s.data.tokens[j].template ? " template" : ""}${seen}`;
    if (node.className !== wanted) node.className = wanted;
  });
}

/** The token that the last finished pass chose and that no pass has read yet. */
function isChosen(s, place, j) {
  const finished = place.done >= stagesOf(s.data) ? place.pass : place.pass - 1, step = s.data.steps[finished];
  return step && j >= s.data.n_prompt && j === step.n_before + step.n_input;
}

function drawGrid(s, place) {
  const { ctx, w } = fitCanvas(s.grid), g = gridBox(s), c = s.colours, { data } = s, per = g.rows;
  if (w < 8) return; // the page is being left
  const fills = { prefill: c.prefill, decode: hatch(ctx, c.decode, { gap: 5, paper: "rgba(255,255,255,.22)" }) };
  const y = (row) => g.h - (row + 1) * g.rh, gapY = g.rh > 5 ? 1 : 0.25, gapX = g.cw > 5 ? 1 : 0;
  const cells = (from, n, row, alpha, fill) => {
    ctx.globalAlpha = alpha; ctx.fillStyle = fill;
    if (!gapX) ctx.fillRect(g.left + from * g.cw, y(row), n * g.cw, g.rh - gapY);
    else for (let j = from; j < from + n; j++) { ctx.beginPath(); ctx.roundRect(g.left + j * g.cw, y(row), g.cw - gapX, g.rh - gapY, Math.max(0, Math.min(2, g.rh / 5))); ctx.fill(); }
    ctx.globalAlpha = 1;
  };
  data.steps.forEach((step, i) => {
    const done = doneRows(s, place, i), here = i === place.pass;
    for (let row = 0; row < per; row++) {
      const top = row === per - 1, from = top ? step.n_before + step.n_input - 1 : step.n_before, n = top ? 1 : step.n_input;
      cells(from, n, row, 1, c.soft);
      const lit = row < done ? 1 : here && place.moving && row === done ? place.fraction : 0;
      if (!lit) continue;
      if (top && step.chooses) drawAnswer(ctx, c, g, from, y(row), lit);
      else if (top) cells(from, 1, row, 0.5 * lit, c.wait);
      else cells(from, n, row, (here && row === place.row ? 1 : row === 0 ? 0.35 : 0.62) * lit, fills[step.phase]);
    }
  });
  drawPointer(s, ctx, c, g, place, y);
  drawLayerNames(s, ctx, c, g, y);
  drawTimes(s, ctx, c, g, place, y, fills);
  const step = data.steps[place.pass];
  s.grid.setAttribute("aria-label", t(s.text.state, { what: stageName(s, place), n: s.f.int(step ? step.n_input : 0), pass: place.pass + 1, passes: data.steps.length }));
  s.root.dataset.pass = place.pass; s.root.dataset.row = place.row; s.root.dataset.done = place.done;
}

function drawAnswer(ctx, c, g, column, y, alpha) {
  const w = Math.max(g.cw - 1, 5), x = g.left + (column + 1) * g.cw - 1 - w;
  ctx.globalAlpha = alpha; ctx.fillStyle = c["new-soft"]; ctx.fillRect(x, y, w, g.rh - 1);
  ctx.strokeStyle = c.new; ctx.lineWidth = 1.5; ctx.setLineDash([3, 2]); ctx.strokeRect(x + 0.75, y + 0.75, w - 1.5, g.rh - 2.5); ctx.setLineDash([]); ctx.globalAlpha = 1;
}

function drawPointer(s, ctx, c, g, place, y) {
  const step = s.data.steps[place.pass];
  ctx.strokeStyle = c.ink; ctx.lineWidth = 1.5;
  if (step && place.row >= 0 && !(place.done === g.rows)) {
    const top = place.row === g.rows - 1, from = top ? step.n_before + step.n_input - 1 : step.n_before, n = top ? 1 : step.n_input;
    ctx.strokeRect(g.left + from * g.cw - 1, y(place.row) - 1, Math.max(4, n * g.cw + 1), g.rh + 1);
  }
  if (s.look !== null) { ctx.setLineDash([3, 3]); ctx.strokeRect(g.left + s.look * g.cw - 1, 0.75, Math.max(3, g.cw + 1), g.h - 1.5); ctx.setLineDash([]); }
}

function drawLayerNames(s, ctx, c, g, y) {
  ctx.fillStyle = c.muted; ctx.textBaseline = "middle"; ctx.textAlign = "right";
  ctx.font = `${0.6875 * g.unit}px ${c.sans}`;
  const every = Math.max(1, Math.ceil((1.125 * g.unit) / g.rh)), n = s.data.n_layers;
  const label = (text, row) => ctx.fillText(text, g.left - 0.375 * g.unit, y(row) + g.rh / 2);
  label(s.text.row_logits, n + 1); label(s.text.row_embed, 0);
  for (let layer = n; layer >= 1; layer -= Math.max(every, 5)) if (n + 1 - layer >= every || layer === n) { if (layer >= every && layer <= n + 1 - every) label("L" + layer, layer); }
  ctx.textAlign = "left"; ctx.textBaseline = "alphabetic";
}

/** Measured time of each stage of the current pass, as bars in line with the rows. */
function drawTimes(s, ctx, c, g, place, y, fills) {
  const step = s.data.steps[place.pass], x = g.right + 0.5 * g.unit, w = g.w - x;
  if (!step || w < 20) return;
  const longest = Math.max(...s.data.steps.flatMap((each) => Array.from({ length: s.data.n_layers }, (_, i) => stageSeconds(each, i + 1))), 1e-9);
  for (let row = 1; row <= s.data.n_layers; row++) {
    const full = Math.max(1, (Math.min(stageSeconds(step, row), longest) / longest) * Math.min(w - 2, g.bars - 2)), lit = row < place.done ? 1 : row === place.done && place.moving ? place.fraction : 0;
    ctx.fillStyle = c.line; ctx.fillRect(x, y(row) + g.rh * 0.2, full, g.rh * 0.6);
    if (lit) { ctx.fillStyle = fills[step.phase]; ctx.fillRect(x, y(row) + g.rh * 0.2, full * lit, g.rh * 0.6); }
  }
  if (place.row < 1 || place.row > s.data.n_layers) return;
  const label = s.f.ms(stageSeconds(step, place.row) * 1000), up = place.row < s.data.n_layers - 1;
  ctx.font = `600 ${0.75 * g.unit}px ${c.sans}`; ctx.textBaseline = "middle";
  const wide = ctx.measureText(label).width, ly = y(place.row) + g.rh / 2 + (up ? -1 : 1) * 0.9375 * g.unit;
  ctx.fillStyle = c.card; ctx.fillRect(x - 1, ly - 0.5 * g.unit, wide + 3, g.unit);
  ctx.fillStyle = c.ink; ctx.fillText(label, Math.min(x, g.w - wide - 1), ly); ctx.textBaseline = "alphabetic";
}

function drawMask(s, place) {
  const { ctx, w } = fitCanvas(s.mask), c = s.colours, side = maskSide(s), n = s.data.tokens.length, cell = side / n, gap = cell > 5 ? 1 : 0;
  if (w < 8) return; // the page is being left
  const fills = { prefill: c.prefill, decode: hatch(ctx, c.decode, { gap: 5, paper: "rgba(255,255,255,.22)" }) };
  const out = hatch(ctx, c.soft, { gap: 6, paper: c.out }), layer = layerNow(s);
  const band = (i, from, to, fill, alpha) => {
    ctx.globalAlpha = alpha; ctx.fillStyle = fill;
    if (!gap) ctx.fillRect(from * cell, i * cell, (to - from) * cell, cell + 0.25);
    else for (let j = from; j < to; j++) ctx.fillRect(j * cell, i * cell, cell - gap, cell - gap);
    ctx.globalAlpha = 1;
  };
  ctx.globalAlpha = 0.55; ctx.fillStyle = out; ctx.beginPath(); ctx.moveTo(cell, 0);
  for (let i = 0; i < n; i++) { ctx.lineTo((i + 1) * cell, i * cell); ctx.lineTo((i + 1) * cell, (i + 1) * cell); }
  ctx.lineTo(side, 0); ctx.closePath(); ctx.fill(); ctx.globalAlpha = 1;
  for (let i = 0; i < n; i++) {
    const pass = passOf(s.data, i), step = s.data.steps[pass], from = sees(s.data, layer, i);
    band(i, from, i + 1, c.soft, 1);
    if (!step) continue;
    const layers = Math.max(0, Math.min(s.data.n_layers, doneRows(s, place, pass) - 1)), extra = pass === place.pass && place.moving && place.done > 0 ? place.fraction : 0;
    const share = Math.min(1, (layers + extra) / s.data.n_layers);
    if (share > 0) band(i, from, i + 1, fills[step.phase], 0.08 + 0.72 * share);
  }
  if (s.look !== null) {
    const from = sees(s.data, layer, s.look);
    ctx.strokeStyle = c.ink; ctx.lineWidth = 1.5; ctx.strokeRect(from * cell - 0.5, s.look * cell - 0.5, Math.max(3, (s.look + 1 - from) * cell), Math.max(3, cell));
  }
  s.mask.setAttribute("aria-label", s.text.mask + ". " + s.text.mask_note);
}

function stageName(s, place) {
  const { n_layers } = s.data;
  if (place.row < 0) return s.text.ready;
  if (place.row === 0) return s.text.embed;
  if (place.row > n_layers) return s.data.steps[place.pass].chooses ? s.text.logits : s.text.logits_unused;
  return t(s.text.layer_of, { i: place.row, n: n_layers });
}

function drawHead(s, place) {
  const { text, f, data } = s, step = data.steps[place.pass];
  s.pill.className = "pill " + (step ? step.phase : "");
  s.pill.textContent = step ? text[step.phase + "_short"] : "";
  const chunks = data.steps.filter((x) => x.phase === "prefill").length, words = [];
  if (step && step.phase === "prefill" && chunks > 1) words.push(t(text.chunk, { i: place.pass + 1, n: chunks }));
  words.push(stageName(s, place));
  if (step && place.row >= 0 && place.row <= data.n_layers) words.push(t(text.at_once, { n: f.int(step.n_input) }));
  if (step && place.row >= 0) words.push(f.ms(stageSeconds(step, place.row) * 1000));
  s.what.textContent = words.join(" · ");
  s.slow.textContent = s.player.speed >= 1 ? text.as_fast : t(text.slower, { n: f.int(Math.round(1 / s.player.speed)) });
}

function drawFigures(s, place) {
  const { text, f, data } = s, step = data.steps[place.pass];
  if (s.figureText !== text) {
    s.figureText = text;
    const kinds = { time: "measured", positions: "measured", layers: "measured", pairs: "computed" };
    s.values = Object.fromEntries(Object.keys(kinds).map((k) => [k, h("b", { dataset: { fig: k } })]));
    s.figs.replaceChildren(...Object.entries(kinds).map(([k, kind]) => h("div", { class: "fig" }, s.values[k], h("span", {}, text["fig_" + k], h("em", { class: "kind" }, text[kind])))));
  }
  const layers = Math.max(0, Math.min(data.n_layers, place.done - 1));
  let seconds = 0;
  if (step) for (let k = 0; k < place.done; k++) seconds += stageSeconds(step, k);
  const pairs = (p, n) => data.steps[p].pairs.slice(0, n).reduce((a, b) => a + b, 0);
  const all = step ? pairs(place.pass, layers) : 0;
  const values = { time: f.ms(seconds * 1000), positions: f.int(step ? step.n_input : 0), layers: `${layers} / ${data.n_layers}`, pairs: f.int(all) };
  for (const [k, v] of Object.entries(values)) if (s.values[k].textContent !== v) s.values[k].textContent = v;
}

// ---- data ------------------------------------------------------------------------------------------------------------

function buildChips(s) {
  s.nodes = s.data.tokens.map((token, j) => {
    const label = t(s.text.token_label, { i: j + 1, text: showToken(token.text, token.hex, token) });
    return h("button", { class: "chip", type: "button", tabindex: j ? -1 : 0, dataset: { j }, "aria-label": label }, showToken(token.text, token.hex, token));
  });
  s.chips.replaceChildren(...s.nodes);
}

function words(s) {
  const { text } = s.data;
  s.text = text; s.root.setAttribute("aria-label", text.aria); s.chips.setAttribute("aria-label", text.tokens_label);
  s.gridTitle.replaceChildren(text.grid, h("small", {}, text.grid_note));
  s.maskTitle.replaceChildren(text.mask, h("small", {}, text.mask_note));
  s.marks.replaceChildren(...["prefill", "decode", "new", "out"].map((k) => h("span", {}, h("i", { class: "m-" + k }), text["legend_" + k])));
  const valueText = () => stageName(s, placeOf(s));
  if (s.bar) return s.bar.setText(text);
  s.bar = playerBar(s.player, text, { speeds: SPEEDS, valueText });
  s.bar.querySelector(".speed").addEventListener("change", () => drawWave(s, "data"));
  s.controls.append(s.bar);
}

export default function (component) {
  const { data, parentElement } = opened(component), s = instance(parentElement, buildWave);
  if (!data) return;
  const fresh = data.run !== s.run, spoken = JSON.stringify(data.text) !== s.spoken, per = stagesOf(data);
  Object.assign(s, { data, run: data.run, f: formats(data.lang), colours: null });
  if (fresh) {
    const total = data.steps.reduce((sum, step) => sum + step.t1 - step.t0, 0);
    s.player.stop();
    Object.assign(s.player, { fraction: 0, speed: SPEEDS.filter((x) => x <= total / PLAY_S).pop() ?? SPEEDS[0] });
  }
  if (spoken) { s.spoken = JSON.stringify(data.text); s.text = data.text; }
  const options = { count: data.steps.length * per, duration: (i) => stageSeconds(data.steps[Math.floor(i / per)], i % per) };
  if (fresh) { options.position = data.steps.filter((x) => x.phase === "prefill").length * per; s.opening = true; }
  Object.assign(s.player, options);
  if (spoken || !s.bar) words(s);
  else if (fresh) s.bar.setText(s.text);
  if (fresh || spoken) buildChips(s);
  s.player.update(options);
}
