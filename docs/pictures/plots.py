"""The plots, of the numbers in docs/data: decimals, which labels print as the file has them."""

from svg import Drawing


def _bar(d, x, y, width, fill):
    d.rect(x, y, width, 12, fill, 2)


def steps(data):
    """Times of decode steps over their floor, beside another system's."""
    rows = data["steps"]
    d = Drawing(860, 96 + 40 * len(rows) + 18 * (len({row["shape"] for row in rows}) - 1), data["title"])
    d.text(24, 30, data["title"], "ink title")
    d.text(24, 50, data["subtitle"], "soft small")
    left, unit = 190, 330  # pixels for the floor
    top = 78
    y, shape = top, None
    for row in rows:
        if shape not in (None, row["shape"]):
            y += 18
        if row["shape"] != shape:
            shape = row["shape"]
            d.text(24, y + 16, shape, "ink bold")
        of_floor = float(row["of_floor"])
        floor = float(row["ms"]) / of_floor
        d.text(left - 12, y + 16, f"{row['batch']} rows" if row["batch"] > 1 else "1 row", "soft", "end")
        _bar(d, left, y, unit * of_floor, "ours")
        d.text(left + unit * of_floor + 8, y + 11, f"{row['ms']} ms", "ink small")
        peer = float(row["peer_ms"]) / floor
        _bar(d, left, y + 15, unit * peer, "other")
        d.text(left + unit * peer + 8, y + 26, f"{row['peer_ms']} ms", "soft small")
        y += 40
    d.path([(left + unit, top - 8), (left + unit, y - 6)], arrow=False, dashed=True, style="mark")
    d.text(left + unit + 6, top - 12, "the floor: matrix products, and keys at read bandwidth", "accent small")
    d.rect(610, 18, 12, 12, "ours", 2)
    d.text(628, 28, "Reprise", "ink small")
    d.rect(690, 18, 12, 12, "other", 2)
    d.text(708, 28, data["peer"], "ink small")
    return d


def attention(data):
    """Times of attention over the best peer's."""
    groups = data["groups"]
    count = sum(len(group["cases"]) for group in groups)
    d = Drawing(860, 104 + 21 * count + 14 * len(groups), data["title"])
    d.text(24, 30, data["title"], "ink title")
    d.text(24, 50, data["subtitle"], "soft small")
    left, right, low, high = 250, 690, 0.6, 1.5
    scale = (right - left) / (high - low)
    top = 84
    bottom = top + 21 * count + 14 * (len(groups) - 1)
    for tick in (0.6, 0.8, 1.0, 1.2, 1.4):
        x = left + (tick - low) * scale
        d.path([(x, top - 6), (x, bottom)], arrow=False, dashed=tick != 1.0, style="mark" if tick == 1.0 else "line")
        d.text(x, top - 12, f"{tick:g}x", "accent small" if tick == 1.0 else "soft small", "middle")
    d.text(right + 30, top - 12, "us, Reprise / peer", "soft small")
    y = top
    for group in groups:
        d.text(24, y + 13, group["name"], "ink bold")
        for case in group["cases"]:
            ratio = float(case["us"]) / float(case["peer_us"])
            x = left + (min(ratio, high) - low) * scale
            d.text(left - 14, y + 13, case["name"], "ink small", "end")
            d.path([(left + (1 - low) * scale, y + 9), (x, y + 9)], arrow=False)
            d.rect(x - 5, y + 4, 10, 10, "ours", 5)
            d.text(right + 30, y + 13, f"{case['us']} / {case['peer_us']}", "soft small")
            y += 21
        y += 14
    d.text(24, bottom + 24, "left of 1.0x: faster than the peer", "soft small")
    return d
