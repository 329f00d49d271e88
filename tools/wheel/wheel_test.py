"""The wheel, installed into a folder: it loads, computes, and its types are those of the operators.

    wheel_test.py FOLDER
"""

import ast
import math
import os
import sys
import unittest

import torch

FOLDER = sys.argv.pop(1)
sys.path.insert(0, FOLDER)

import reprise_ops  # noqa: E402  of FOLDER


def schemas():
    """(name, overload) -> argument names of each registered operator."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("reprise::"):
            key = (schema.name.removeprefix("reprise::"), schema.overload_name)
            found[key] = [(argument.name, argument.kwarg_only, argument.has_default_value())
                          for argument in schema.arguments]
    return found


def typed():
    """The same of the stub."""
    with open(os.path.join(FOLDER, "reprise_ops", "__init__.pyi")) as file:
        tree = ast.parse(file.read())

    def arguments(function):
        positional = function.args.args[1:] if function.args.args[:1] and function.args.args[0].arg == "self" \
            else function.args.args
        without = len(positional) - len(function.args.defaults)
        return ([(argument.arg, False, i >= without) for i, argument in enumerate(positional)] +
                [(argument.arg, True, default is not None)
                 for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults)])

    classes, found = {}, {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name, ""] = arguments(node)
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = {member.name: arguments(member) for member in node.body}
        elif isinstance(node, ast.AnnAssign) and getattr(node.annotation, "id", None) in classes:
            members = classes[node.annotation.id]
            found[node.target.id, ""] = members["__call__"]
            found[node.target.id, "out"] = members["out"]
    return found


class WheelTest(unittest.TestCase):

    def test_is_the_installed_one(self):
        self.assertEqual(os.path.dirname(os.path.dirname(os.path.abspath(reprise_ops.__file__))),
                         os.path.abspath(FOLDER))

    def test_attends_over_a_paged_cache(self):
        torch.manual_seed(1)
        k = torch.randn(6, 1, 16)
        v = torch.randn(6, 1, 16)
        q = torch.randn(1, 2, 16)
        k_cache, v_cache = torch.full((4, 4, 1, 16), math.nan), torch.full((4, 4, 1, 16), math.nan)
        # Blocks 3 and 1.
        reprise_ops.write_kv(k, v, k_cache, v_cache, torch.tensor([12, 13, 14, 15, 4, 5]))
        ints = lambda *values: torch.tensor(values, dtype=torch.int32)
        arguments = (q, k_cache, v_cache, ints(3, 1).unsqueeze(0), ints(6), ints(0, 1))
        out, lse = reprise_ops.paged_attention(*arguments)
        scores = torch.einsum("hd,kd->hk", q[0], k[:, 0]) / 4
        self.assertTrue(torch.allclose(out[0], scores.softmax(-1) @ v[:, 0], atol=1e-5))
        self.assertTrue(torch.allclose(lse[0], scores.logsumexp(-1), atol=1e-5))
        written = torch.empty_like(out)
        reprise_ops.paged_attention.out(*arguments, out=written)
        self.assertTrue(torch.equal(written, out))

    def test_names_and_types_are_those_of_the_operators(self):
        self.assertEqual({name for name, _ in schemas()}, set(reprise_ops.__all__))
        self.assertEqual(typed(), schemas())
        with self.assertRaises(AttributeError):
            reprise_ops.no_such_operator


if __name__ == "__main__":
    unittest.main()
