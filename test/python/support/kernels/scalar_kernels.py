# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Kernels of one scalar op in each type."""

FLOATS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
INTEGERS = ["i64", "i32", "i8", "i1"]
NAN = {"f64": "0x7FF8000000000000", "f32": "0x7FC00000", "f16": "0x7E00", "bf16": "0x7FC0",
       "f8E4M3FN": "0x7F", "f8E5M2": "0x7F"}
BINARY = ["addf", "subf", "mulf", "divf", "remf", "maximumf", "minimumf", "maxnumf", "minnumf"]
MATH = ["exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sin", "cos", "sqrt", "rsqrt",
        "absf", "floor", "ceil", "trunc", "round", "roundeven"]
PREDICATES = ["oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule",
              "une", "uno"]


def scalar_ops():
    """Returns (name, type of the operands %a and %b, type of the result, text that defines %r)."""
    for a, width in FLOATS.items():
        for b, other in FLOATS.items():
            if width < other:
                yield f"ext_{a}_{b}", a, b, f"%r = arith.extf %a : {a} to {b}"
            if width > other:
                yield f"trunc_{a}_{b}", a, b, f"%r = arith.truncf %a : {a} to {b}"
        for b in INTEGERS:
            if b != "i1":
                yield f"fptosi_{a}_{b}", a, b, f"%r = arith.fptosi %a : {a} to {b}"
            for op in ("sitofp", "uitofp"):
                yield f"{op}_{b}_{a}", b, a, f"%r = arith.{op} %a : {b} to {a}"
        for op in BINARY:
            yield f"{op}_{a}", a, a, f"%r = arith.{op} %a, %b : {a}"
        yield f"negf_{a}", a, a, f"%r = arith.negf %a : {a}"
        for op in MATH:
            yield f"{op}_{a}", a, a, f"%r = math.{op} %a : {a}"
        yield f"powf_{a}", a, a, f"%r = math.powf %a, %b : {a}"
        yield f"fma_{a}", a, a, f"%r = math.fma %a, %b, %a : {a}"
        for predicate in PREDICATES:
            yield (f"cmpf_{predicate}_{a}", a, "i1",
                   f"%r = arith.cmpf {predicate}, %a, %b : {a}")
        yield (f"constant_{a}", a, a, f"%k = arith.constant 0.5 : {a}\n"
               f"    %n = arith.constant {NAN[a]} : {a}\n"
               f"    %c = arith.cmpf oeq, %a, %k : {a}\n"
               f"    %r = arith.select %c, %n, %b : {a}")
        yield (f"through_{a}", "f32", "f32", "%r = arith.addf %a, %b : f32" if width >= 32 else
               f"%t = arith.truncf %a : f32 to {a}\n    %r = arith.extf %t : {a} to f32")


def kernel(name, source, result, text):
    at = "at affine_map<(r, c) -> (r * 64 + c)> : tensor<4x64x"
    return f"""exec.kernel @{name} map [4, 64] (%x: tensor<4x64x{source}>, %y: tensor<4x64x{source}>)
    -> (%z: tensor<4x64x{result}>)
    attributes {{vector = 4 : i64, alignment = array<i64: 16, 16, 16>}} {{
  exec.pass {{
    %a = exec.load %x {at}{source}> -> {source}
    %b = exec.load %y {at}{source}> -> {source}
    {text}
    exec.store %r, %z at affine_map<(r, c) -> (r * 64 + c)> : {result}, tensor<4x64x{result}>
    exec.yield
  }}
}}
"""
