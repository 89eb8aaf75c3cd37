"""Rectangular grids as lists of rows."""


def neighbours(grid: list[list[int]], row: int, column: int) -> list[int]:
    """Values above, below, left and right of a cell, in that order, as far as they exist."""
    found: list[int] = []
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        y, x = row + down, column + right
        if 0 <= y < len(grid) and 0 <= x < len(grid[0]):
            found.append(grid[y][x])
    return found


def rotate(grid: list[list[int]]) -> list[list[int]]:
    """The grid turned by 90 degrees clockwise."""
    return [list(row) for row in zip(*grid[::-1], strict=True)]


def column_sums(grid: list[list[int]]) -> list[int]:
    """Sum of each column; an empty grid has none."""
    if not grid:
        return []
    return [sum(row[x] for row in grid) for x in range(len(grid[0]))]


def regions(grid: list[list[int]], value: int = 1) -> int:
    """Number of connected areas of cells equal to `value` (one if not given); cells touch at their sides."""
    open_cells = {(y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell == value}
    count = 0
    while open_cells:
        count += 1
        stack = [open_cells.pop()]
        while stack:
            y, x = stack.pop()
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if near in open_cells:
                    open_cells.remove(near)
                    stack.append(near)
    return count


def border(grid: list[list[int]]) -> int:
    """Sum of all cells on the edge, each counted once."""
    last_row, last_column = len(grid) - 1, len(grid[0]) - 1
    return sum(
        cell for y, row in enumerate(grid) for x, cell in enumerate(row) if y in (0, last_row) or x in (0, last_column)
    )


def diagonal(grid: list[list[int]], offset: int = 0) -> list[int]:
    """Cells from the top left downwards to the right, starting `offset` columns further right."""
    return [row[y + offset] for y, row in enumerate(grid) if y + offset < len(row)]
