# SPDX-License-Identifier: Apache-2.0
"""What ringcast does with Python objects, beside pickle, measured: python -m ringcast.bench --help."""
