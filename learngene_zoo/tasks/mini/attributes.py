"""What pictures of the suite can be asked besides their class: the source task's extra labels. Cold.

A number lies between -1 and 1; a category counts from 0. Where an attribute has no meaning (the lobes of a texture) its
value is NaN, and the losses leave it out.
"""

from __future__ import annotations

from learngene_zoo.tasks.task import Attribute

ATTRIBUTES = (
    Attribute("lobes", classes=13),  # of the main contour, 0 to 12
    Attribute("frequency"),  # of a texture or a contour's ripple, log2 of cycles per picture: 0.5 -> -1, 16 -> 1
    Attribute("amplitude"),  # of that ripple or contrast of that texture, 0 -> -1, largest -> 1
    Attribute("ink_hue_x"),  # cosine and sine of the hue of what is drawn
    Attribute("ink_hue_y"),
    Attribute("paper_hue_x"),  # and of what it is drawn on
    Attribute("paper_hue_y"),
    Attribute("x"),  # centre of the main object, -1 left (top) to 1 right (bottom)
    Attribute("y"),
    Attribute("size"),  # its diameter as a share of the picture: 0 -> -1, 1 -> 1
    Attribute("angle_x"),  # cosine and sine of its rotation (of twice the angle for what has no head)
    Attribute("angle_y"),
    Attribute("texture", classes=12),  # kind of texture: the index in textures.KINDS
    Attribute("glyph", classes=160),  # which glyph, of those that are held out for the source task
)
