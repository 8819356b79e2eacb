"""Bugs to plant in kernels/linear_residual.py."""

BUGS = {
    ("linear_residual", "linear_residual.py"): (
        ("nothing is added", "MatrixProduct(adds_residual=True)", "MatrixProduct()"),
        ("the residual is subtracted", "widen(residual) + product", "product - widen(residual)"),
        ("the product is added to itself", "store(widen(residual)", "store(product"),
    ),
}
