//! The browser of a real agent: it looks at a page that runs in its sandbox, and a person sees the screenshot.

use std::io::Read as _;

use serde_json::{Value, json};

use crate::harness::Machine;
use crate::live::{Real, http, tokens};

const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "look at the page"
[[rule.step]]
tool = [{ name = "playwright_browser_navigate", input = { url = "http://127.0.0.1:8000/" } }]
[[rule.step]]
tool = [{ name = "playwright_browser_take_screenshot", input = { type = "png", filename = ".proliferate/.verification/page.png" } }]
[[rule.step]]
tool = [{ name = "verify", input = {} }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

/// A page whose upper part is red, with a text, and whose lower part is white.
const START_SITE_COMMAND: &str = "mkdir -p .proliferate/.verification; cat > server.js <<'END'\n\
    const page = '<body style=\"margin:0\"><h1 style=\"margin:0;height:200px;background:#cc0000\">Hello</h1>';\n\
    require('http').createServer((_, answer) => answer.setHeader('content-type', 'text/html').end(page)).listen(8000);\n\
    END\n\
    proliferate services start --name site --command 'node server.js'\n\
    until node -e \"fetch('http://127.0.0.1:8000/').catch(() => process.exit(1))\"; do sleep 0.1; done";

fn real(settings: &[(&str, &str)]) -> Real {
    let machine = Machine::new();
    let script = machine.file("browser.toml");
    std::fs::write(&script, SCRIPT).unwrap();
    let script = script.display().to_string();
    let settings =
        [settings, &[("PROLIFERATE_MODEL_SCRIPT", script.as_str()), ("WARM_POOL_SIZE", "0")]].concat();
    let mut real = Real::on(machine, &settings);
    assert_eq!(real.machine.run(&["egress", "mode", "offline"]).code, 0);
    real.new_session(&json!({}));
    real
}

#[test]
fn an_agent_looks_at_its_app_and_a_person_sees_the_screenshot() {
    let real = real(&[("SANDBOX_BROWSER", "1")]);
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    real.shell(&real.sandbox(), START_SITE_COMMAND);
    socket.prompt("please look at the page");
    let frames = socket.until_type("turn_complete");
    let text = tokens(&frames);
    let result: Value = serde_json::from_str(text.trim_start_matches("It said: ")).unwrap_or_default();
    let prefix = result["key"].as_str().unwrap_or_else(|| panic!("{text} {frames:?}"));
    let path = format!("/proliferate/{}/verification-media", real.session);
    let listed = real.get(&format!("{path}?prefix={prefix}"));
    let file = &listed["files"][0];
    assert_eq!((&file["path"], &file["contentType"]), (&json!("page.png"), &json!("image/png")), "{listed}");
    let url = real.get(&format!("{path}?key={prefix}page.png"))["url"].as_str().unwrap().to_owned();
    let content = http().get(&url).bearer_auth(real.key()).send().unwrap().bytes().unwrap();
    let image = Image::read(&content);
    assert_eq!(image.pixel(5, 190), [204, 0, 0], "the upper part");
    assert_eq!(image.pixel(5, 210), [255, 255, 255], "the lower part");
    let written =
        (0..100).flat_map(|x| (0..60).map(move |y| (x, y))).filter(|(x, y)| image.pixel(*x, *y) == [0; 3]);
    assert!(written.count() > 20, "no letters: are there no fonts?");
    let left = real.shell(&real.sandbox(), "ls -A");
    assert_eq!(left, ".proliferate\nserver.js", "the browser leaves nothing in the workspace");
}

#[test]
fn an_agent_without_a_browser_has_no_tools_of_one() {
    let real = real(&[]);
    let mut socket = real.watch("");
    socket.prompt("please look at the page");
    let frames = socket.until_type("turn_complete");
    assert!(json!(frames).to_string().contains("unavailable tool"), "{frames:?}");
    let told = real.shell(&real.sandbox(), "cat ~/.proliferate/agent/instructions.md");
    assert!(!told.contains("playwright"), "{told}");
}

/// The pixels of a PNG file.
struct Image {
    width: usize,
    channels: usize,
    rows: Vec<Vec<u8>>,
}

impl Image {
    /// Reads an image with 8 bits for each of three or four channels, which is what Chromium makes.
    fn read(file: &[u8]) -> Self {
        let mut rest = file.strip_prefix(b"\x89PNG\r\n\x1a\n").unwrap();
        let (mut header, mut compressed) = (Vec::new(), Vec::new());
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (content, next) = after[4..].split_at(u32::from_be_bytes(*length) as usize);
            match &after[..4] {
                b"IHDR" => header = content.to_vec(),
                b"IDAT" => compressed.extend_from_slice(content),
                _ => {}
            }
            rest = &next[4..];
        }
        let width = u32::from_be_bytes(header[..4].try_into().unwrap()) as usize;
        let channels = match header[8..] {
            [8, 2, 0, 0, 0] => 3,
            [8, 6, 0, 0, 0] => 4,
            ref other => panic!("another kind of PNG: {other:?}"),
        };
        let mut lines = Vec::new();
        flate2::read::ZlibDecoder::new(&compressed[..]).read_to_end(&mut lines).unwrap();
        let mut rows = vec![vec![0; width * channels]];
        for line in lines.chunks(width * channels + 1) {
            let above = rows.last().unwrap();
            rows.push(unfilter(line[0], &line[1..], above, channels));
        }
        rows.remove(0);
        Self { width, channels, rows }
    }

    fn pixel(&self, x: usize, y: usize) -> [u8; 3] {
        assert!(x < self.width);
        let at = x * self.channels;
        self.rows[y][at..at + 3].try_into().unwrap()
    }
}

/// Reverses the filter of one line.
fn unfilter(filter: u8, line: &[u8], above: &[u8], channels: usize) -> Vec<u8> {
    let mut row: Vec<u8> = Vec::with_capacity(line.len());
    for (index, byte) in line.iter().enumerate() {
        let before = |row: &[u8]| index.checked_sub(channels).map_or(0, |index| row[index]);
        let (left, up, corner) = (before(&row), above[index], before(above));
        let average = || u8::try_from(u16::midpoint(left.into(), up.into())).unwrap();
        let prediction = match filter {
            0 => 0,
            1 => left,
            2 => up,
            3 => average(),
            4 => paeth(left, up, corner),
            other => panic!("filter {other}"),
        };
        row.push(byte.wrapping_add(prediction));
    }
    row
}

fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let estimate = i16::from(left) + i16::from(up) - i16::from(corner);
    let distance = |value: u8| (estimate - i16::from(value)).abs();
    [left, up, corner].into_iter().min_by_key(|value| distance(*value)).unwrap()
}
