// Has real Mermaid draw the texts of a folder: name.mmd -> name.mmd.svg.
// Usage: node draw_graphs.mjs FOLDER; the packages are those of the nox session.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const require = createRequire(import.meta.url);
const folder = process.argv[2];
const browser = await puppeteer.launch({
  args: chromium.args,
  executablePath: await chromium.executablePath(),
  headless: "shell",
});
const page = await browser.newPage();
await page.setViewport({ width: 1800, height: 900 });
await page.addScriptTag({ path: join(require.resolve("mermaid"), "..", "mermaid.min.js") });
await page.evaluate(() => mermaid.initialize({ startOnLoad: false, securityLevel: "strict" }));

const byMermaid = (text, id) =>
  page.evaluate(async (source, name) => (await mermaid.render(name, source)).svg, text, id);

// Mermaid writes HTML, of which a file on its own must be XML with a size.
function asFile() {
  const svg = document.querySelector("svg");
  const { width, height } = svg.viewBox.baseVal;
  svg.setAttribute("width", Math.ceil(width));
  svg.setAttribute("height", Math.ceil(height));
  svg.style.maxWidth = "";
  return new XMLSerializer().serializeToString(svg);
}

for (const name of readdirSync(folder).filter((one) => one.endsWith(".mmd"))) {
  const text = readFileSync(join(folder, name), "utf8");
  const id = name.replace(/\W/g, "-");
  const drawn = await byMermaid(text, id);
  await page.evaluate((one) => (document.body.innerHTML = one), drawn.slice(drawn.indexOf("<svg")));
  const svg = await page.evaluate(asFile);
  const digest = createHash("sha256").update(text).digest("hex");
  writeFileSync(join(folder, `${name}.svg`), `<!-- sha256 of the text: ${digest} -->\n${svg}\n`);
  await page.evaluate(() => (document.body.style.background = "white"));
  const box = await page.$("svg");
  if (process.argv[3]) await box.screenshot({ path: join(process.argv[3], `${name}.png`) });
}
await browser.close();
