"""Pictures of one shape in one colour, for teaching and testing: sizes, places, tilts, grounds and noise by a seed."""

import math
import random

from PIL import Image, ImageChops, ImageDraw, ImageFilter

COLOURS = {
    "red": (215, 25, 30),
    "green": (30, 150, 50),
    "blue": (30, 60, 215),
    "yellow": (245, 225, 40),
    "orange": (245, 135, 15),
    "purple": (125, 35, 165),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
}
SHAPES = ["circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond"]
# Pixels drawn for each pixel that is kept, along a side.
FINE = 3


def outline(shape):
    """Corners of a shape within a circle of radius 1, its top up."""
    around = lambda n, radius, start: [
        (radius(i) * math.sin(start + 2 * math.pi * i / n), -radius(i) * math.cos(start + 2 * math.pi * i / n)) for i in range(n)
    ]
    if shape in ("circle", "ring"):
        return around(64, lambda i: 1, 0)
    if shape == "square":
        return around(4, lambda i: 1, math.pi / 4)
    if shape == "diamond":
        return [(0, -1), (0.68, 0), (0, 1), (-0.68, 0)]
    if shape == "triangle":
        return around(3, lambda i: 1, 0)
    if shape == "star":
        return around(10, lambda i: 0.42 if i % 2 else 1, 0)
    if shape == "cross":
        arm, end = 0.3, 0.95
        return [
            (-arm, -end), (arm, -end), (arm, -arm), (end, -arm), (end, arm), (arm, arm),
            (arm, end), (-arm, end), (-arm, arm), (-end, arm), (-end, -arm), (-arm, -arm),
        ]
    turn = [2 * math.pi * i / 64 for i in range(64)]
    heart = [(16 * math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))) for t in turn]
    return [(x / 17, (y - 2) / 17) for x, y in heart]


def near(rng, colour, by):
    return tuple(max(0, min(255, round(c + rng.uniform(-by, by)))) for c in colour)


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


def ground(rng, colour, side):
    """A ground that is not of the shape's colour: plain, or from one colour to another, with some noise."""
    def other():
        while True:
            found = tuple(rng.randrange(256) for _ in range(3))
            if rng.random() < 0.3:
                found = (found[0],) * 3
            if distance(found, colour) > 130:
                return found
    one = other()
    picture = Image.new("RGB", (side, side), one)
    if rng.random() < 0.4:
        ramp = Image.linear_gradient("L").resize((side, side)).rotate(rng.choice([0, 90, 180, 270]))
        picture = Image.composite(Image.new("RGB", (side, side), near(rng, one, 40)), picture, ramp)
    return picture


def picture(seed, side=None):
    """An image, its colour and its shape."""
    rng = random.Random(seed)
    name, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    side = side or rng.randrange(64, 257)
    fine = side * FINE
    colour = near(rng, COLOURS[name], 14)
    image = ground(rng, colour, fine)
    radius = fine * rng.uniform(0.27, 0.44)
    x, y = (rng.uniform(radius, fine - radius) for _ in range(2))
    tilt = math.radians(rng.uniform(-12, 12))
    turned = lambda px, py: (
        x + radius * (px * math.cos(tilt) - py * math.sin(tilt)),
        y + radius * (px * math.sin(tilt) + py * math.cos(tilt)),
    )
    corners = outline(shape)
    mask = Image.new("L", (fine, fine))
    draw = ImageDraw.Draw(mask)
    draw.polygon([turned(*corner) for corner in corners], fill=255)
    if shape == "ring":
        hole = rng.uniform(0.5, 0.65)
        draw.polygon([turned(hole * px, hole * py) for px, py in corners], fill=0)
    image.paste(Image.new("RGB", image.size, colour), mask=mask)
    image = image.resize((side, side), Image.Resampling.BOX)
    if rng.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, side / 150)))
    noise = Image.effect_noise((side, side), rng.uniform(0, 16))
    image = ImageChops.add(image, Image.merge("RGB", [noise] * 3), offset=-128)
    return image, name, shape
