"""Defines a figure that a notebook shows as a picture.

A notebook shows a figure of matplotlib only after `%matplotlib inline` or an import of pyplot. This
one has the picture itself.
"""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure of matplotlib, with the method by which a notebook asks for a picture."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
