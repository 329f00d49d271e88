"""A drawing as SVG: boxes, arrows, rows of cells and text, legible on light and on dark pages.

Colours are classes of a style sheet in the file, with a second set for `prefers-color-scheme: dark`, and a
background of the drawing's own, so that a page that ignores the second set stays legible. Coordinates are
pixels; text is placed by its baseline. Equal calls give equal bytes.
"""

from xml.sax.saxutils import escape

# Name: (light fill, light stroke, dark fill, dark stroke).
FILLS = {
    "plain": ("#ffffff", "#8c959f", "#161b22", "#6e7681"),
    "host": ("#ddf4ff", "#54aeff", "#0c2d6b", "#388bfd"),
    "device": ("#dafbe1", "#4ac26b", "#033a16", "#2ea043"),
    "warm": ("#fff1e5", "#fb8f44", "#3d1300", "#db6d28"),
    "violet": ("#fbefff", "#c297ff", "#2b1152", "#a371f7"),
    "muted": ("#eaeef2", "#afb8c1", "#21262d", "#484f58"),
    "ours": ("#2da44e", "#2da44e", "#3fb950", "#3fb950"),
    "other": ("#afb8c1", "#afb8c1", "#6e7681", "#6e7681"),
}
LIGHT = {"ink": "#1f2328", "soft": "#59636e", "line": "#59636e", "page": "#f6f8fa", "accent": "#bc4c00"}
DARK = {"ink": "#f0f6fc", "soft": "#9da7b3", "line": "#9da7b3", "page": "#0d1117", "accent": "#ffa657"}
SANS = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def _colours(theme, side):
    rules = [f".page{{fill:{theme['page']}}}", f".ink{{fill:{theme['ink']}}}", f".soft{{fill:{theme['soft']}}}",
             f".accent{{fill:{theme['accent']}}}", f".line{{stroke:{theme['line']}}}", f".head{{fill:{theme['line']}}}",
             f".mark{{stroke:{theme['accent']}}}"]
    rules += [f".{name}{{fill:{colours[2 * side]};stroke:{colours[2 * side + 1]}}}" for name, colours in FILLS.items()]
    return "".join(rules)


STYLE = (f"text{{font-family:{SANS};font-size:13px}}.mono{{font-family:{MONO};font-size:12px}}.small{{font-size:11px}}"
         ".bold{font-weight:600}.title{font-size:15px;font-weight:600}.line,.mark{fill:none;stroke-width:1.5}"
         ".dash{stroke-dasharray:4 3}rect{stroke-width:1}" + _colours(LIGHT, 0) +
         "@media(prefers-color-scheme:dark){" + _colours(DARK, 1) + "}")


def _number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Drawing:
    """A drawing of a size, with a sentence for those who cannot see it."""

    def __init__(self, width, height, title):
        self.width = width
        self.height = height
        self.title = title
        self._parts = []

    def rect(self, x, y, width, height, fill="plain", radius=6, dashed=False):
        style = f"{fill} dash" if dashed else fill
        self._parts.append(f'<rect class="{style}" x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
                           f'height="{_number(height)}" rx="{_number(radius)}"/>')

    def text(self, x, y, text, style="ink", anchor="start"):
        """`style`: classes, such as "soft small" or "ink mono"."""
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._parts.append(f'<text class="{style}" x="{_number(x)}" y="{_number(y)}"{at}>{escape(text)}</text>')

    def lines(self, x, y, lines, style="ink", anchor="start", step=17):
        for i, line in enumerate(lines):
            self.text(x, y + i * step, line, style, anchor)

    def box(self, x, y, width, height, lines, fill="plain", style="ink", notes=()):
        """A box with lines of text in its middle, the notes smaller and below the others."""
        self.rect(x, y, width, height, fill)
        first = y + height / 2 + 4.5 - (17 * (len(lines) - 1) + 15 * len(notes)) / 2
        for i, line in enumerate(lines):
            self.text(x + width / 2, first + 17 * i, line, style, "middle")
        for i, line in enumerate(notes):
            self.text(x + width / 2, first + 17 * len(lines) + 15 * i - 1, line, "soft small", "middle")

    def path(self, points, arrow=True, dashed=False, style="line"):
        """A line through points, each a pair; with `arrow` it ends in a head."""
        (x0, y0), (x1, y1) = points[-2], points[-1]
        length = ((x1 - x0)**2 + (y1 - y0)**2)**0.5
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        end = (x1 - 6 * dx, y1 - 6 * dy) if arrow else (x1, y1)
        along = " ".join(f"{_number(x)},{_number(y)}" for x, y in points[:-1] + [end])
        classes = f"{style} dash" if dashed else style
        self._parts.append(f'<polyline class="{classes}" points="{along}"/>')
        if arrow:
            head = [(x1, y1), (x1 - 8 * dx - 4 * dy, y1 - 8 * dy + 4 * dx), (x1 - 8 * dx + 4 * dy, y1 - 8 * dy - 4 * dx)]
            self._parts.append(f'<polygon class="{"accent" if style == "mark" else "head"}" points="' +
                               " ".join(f"{_number(x)},{_number(y)}" for x, y in head) + '"/>')

    def cells(self, x, y, texts, width=30, height=24, fills="plain", style="ink mono"):
        """A row of cells. `fills`: one name for all, or a list with one for each."""
        names = [fills] * len(texts) if isinstance(fills, str) else fills
        for i, (text, fill) in enumerate(zip(texts, names)):
            self.rect(x + i * width, y, width, height, fill, radius=0)
            if text != "":
                self.text(x + (i + 0.5) * width, y + height / 2 + 4, str(text), style, "middle")

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}" role="img">\n<title>{escape(self.title)}</title>\n'
                f"<style>{STYLE}</style>\n"
                f'<rect class="page" x="0" y="0" width="{self.width}" height="{self.height}" rx="8"/>\n' +
                "\n".join(self._parts) + "\n</svg>\n")
