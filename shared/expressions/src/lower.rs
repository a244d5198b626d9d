//! From `cel`'s tree to ours: resolves every name, function and loop variable, collects what is
//! referred to, and refuses by name what this crate does not evaluate.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, MapExpr, operators};

use crate::limits::{LOOPS_DEEP_MAX, TREE_DEPTH_MAX};
use crate::names::{binary, expect_arguments, global_function, loop_kind, member_function};
use crate::node::{Literal, Logic, Loop, LoopKind, Node, Place, Program};
use crate::patterns::Pattern;
use crate::{Fault, References};

const ROOTS: [&str; 7] = ["input", "steps", "artifacts", "plan", "failure", "effect", "secrets"];

pub(crate) fn lower(tree: &IdedExpr) -> Result<Program, Fault> {
    let mut lowering = Lowering::default();
    let root = lowering.node(&tree.expr)?;
    Ok(Program { root, references: lowering.references })
}

#[derive(Default)]
struct Lowering {
    references: References,
    /// Names of the loop variables in scope, outermost first.
    variables: Vec<String>,
    depth: usize,
}

impl Lowering {
    fn node(&mut self, expr: &Expr) -> Result<Node, Fault> {
        self.depth += 1;
        if self.depth > TREE_DEPTH_MAX {
            return Err(Fault::new(format!(
                "expression chains or nests more than {TREE_DEPTH_MAX} operations, split it up"
            )));
        }
        let node = self.node_within_depth(expr)?;
        self.depth -= 1;
        Ok(node)
    }

    fn node_within_depth(&mut self, expr: &Expr) -> Result<Node, Fault> {
        match expr {
            Expr::Literal(value) => Ok(Node::Literal(literal(value)?)),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) if select.test => Err(unsupported("a presence test")),
            Expr::Select(select) => self.access(&select.operand.expr, &select.field),
            Expr::List(list) => Ok(Node::List(self.nodes(&list.elements)?)),
            Expr::Map(map) => self.map(map),
            Expr::Call(call) => self.call(call),
            Expr::Struct(message) => Err(unsupported(&format!("message `{}`", message.type_name))),
            Expr::Comprehension(_) => Err(unsupported("an expanded comprehension")),
            Expr::Unspecified => Err(Fault::new("expected an expression")),
        }
    }

    fn nodes(&mut self, elements: &[IdedExpr]) -> Result<Vec<Node>, Fault> {
        elements.iter().map(|element| self.node(&element.expr)).collect()
    }

    fn boxed(&mut self, expr: &IdedExpr) -> Result<Box<Node>, Fault> {
        Ok(Box::new(self.node(&expr.expr)?))
    }

    fn name(&mut self, name: &str) -> Result<Node, Fault> {
        if let Some(position) = self.variables.iter().rposition(|variable| variable == name) {
            return Ok(Node::Variable(position));
        }
        match name {
            "input" | "failure" | "effect" => Ok(Node::Read(self.bare_root(name))),
            "steps" => Err(Fault::new(
                "steps are named one by one and by literal id, as steps.ID or steps[\"ID\"]",
            )),
            "artifacts" => Err(Fault::new(
                "artifacts are named one by one and literally, as artifacts[\"STEP/NAME\"]",
            )),
            "plan" => Err(Fault::new("plan has nothing but plan.dir")),
            "secrets" => Err(secret_fault("a secret")),
            _ => Err(Fault::new(format!(
                "unknown name `{name}`, expected one of {} (ids with `-` or `.` are written \
                 steps[\"ID\"])",
                ROOTS.join(", ")
            ))),
        }
    }

    fn bare_root(&mut self, name: &str) -> Place {
        match name {
            "input" => {
                self.references.input = true;
                Place::Input
            }
            "effect" => {
                self.references.effect = true;
                Place::Effect
            }
            _ => {
                self.references.failure = true;
                Place::Failure
            }
        }
    }

    /// `operand.field`, or `operand["field"]`.
    fn access(&mut self, operand: &Expr, field: &str) -> Result<Node, Fault> {
        match self.place(operand, field)? {
            Some(place) => Ok(Node::Read(place)),
            None => Ok(Node::Field(Box::new(self.node(operand)?), field.to_owned())),
        }
    }

    /// What an access reads from the context; `None` if it reads from another value.
    fn place(&mut self, operand: &Expr, field: &str) -> Result<Option<Place>, Fault> {
        if let Some(root) = self.root(operand) {
            return match (root, field) {
                ("plan", "dir") => {
                    self.references.plan_dir = true;
                    Ok(Some(Place::PlanDir))
                }
                ("plan", _) => Err(Fault::new(format!("plan has only plan.dir, no `{field}`"))),
                ("steps", _) => Err(Fault::new(format!(
                    "step {field} is no value, expected its .status or its .output (an id with `-` \
                     or `.` is written steps[\"ID\"])"
                ))),
                ("artifacts", _) => Err(Fault::new(format!(
                    "artifact {field} is no value, expected artifacts[\"STEP/NAME\"] with its \
                     .bytes or its .sha256"
                ))),
                ("secrets", name) => Err(secret_fault(&format!("secret {name}"))),
                _ => Ok(None),
            };
        }
        let Some((inner, key)) = literal_access(operand) else { return Ok(None) };
        match self.root(inner) {
            Some("steps") => self.step(key, field).map(Some),
            Some("artifacts") => self.artifact(key, field).map(Some),
            _ => Ok(None),
        }
    }

    fn step(&mut self, id: &str, field: &str) -> Result<Place, Fault> {
        self.references.steps.insert(id.to_owned());
        match field {
            "status" => Ok(Place::StepStatus(id.to_owned())),
            "output" => {
                self.references.outputs.insert(id.to_owned());
                Ok(Place::StepOutput(id.to_owned()))
            }
            _ => Err(Fault::new(format!(
                "step {id} has a .status and an .output, no `{field}` (an id with a dot is \
                 written steps[\"{id}.{field}\"])"
            ))),
        }
    }

    fn artifact(&mut self, key: &str, field: &str) -> Result<Place, Fault> {
        if !key.split_once('/').is_some_and(|(step, name)| !step.is_empty() && !name.is_empty()) {
            let rule = format!("artifact `{key}` is not named as \"STEP/NAME\"");
            return Err(Fault::new(rule));
        }
        self.references.artifacts.insert(key.to_owned());
        match field {
            "bytes" => Ok(Place::ArtifactBytes(key.to_owned())),
            "sha256" => Ok(Place::ArtifactSha256(key.to_owned())),
            _ => Err(Fault::new(format!("artifact {key} has .bytes and .sha256, no `{field}`"))),
        }
    }

    /// The root that a bare name means, unless a loop variable has that name.
    fn root<'e>(&self, expr: &'e Expr) -> Option<&'e str> {
        match expr {
            Expr::Ident(name) if !self.variables.contains(name) => {
                ROOTS.contains(&name.as_str()).then_some(name)
            }
            _ => None,
        }
    }

    fn map(&mut self, map: &MapExpr) -> Result<Node, Fault> {
        let mut entries = Vec::with_capacity(map.entries.len());
        for entry in &map.entries {
            match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    entries.push((self.node(&entry.key.expr)?, self.node(&entry.value.expr)?));
                }
                EntryExpr::StructField(_) => return Err(unsupported("a message field")),
            }
        }
        Ok(Node::Map(entries))
    }

    fn call(&mut self, call: &CallExpr) -> Result<Node, Fault> {
        if let Some(target) = &call.target {
            return self.member_call(&call.func_name, target, &call.args);
        }
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => {
                let (condition, yes) = (self.node(&condition.expr)?, self.node(&yes.expr)?);
                Ok(Node::Conditional(Box::new([condition, yes, self.node(&no.expr)?])))
            }
            (operators::LOGICAL_AND, _) => self.logic(Logic::And, call),
            (operators::LOGICAL_OR, _) => self.logic(Logic::Or, call),
            (operators::LOGICAL_NOT, [operand]) => Ok(Node::Not(self.boxed(operand)?)),
            (operators::NEGATE, [operand]) => Ok(Node::Negate(self.boxed(operand)?)),
            (operators::INDEX, [operand, index]) => self.index(&operand.expr, &index.expr),
            (operators::HAS, [argument]) => self.has(&argument.expr),
            (name, [left, right]) if binary(name).is_some() => {
                let operator = binary(name).ok_or_else(|| unsupported(name))?;
                let left = self.node(&left.expr)?;
                Ok(Node::Binary(operator, Box::new([left, self.node(&right.expr)?])))
            }
            (name, arguments) => {
                let function = global_function(name, arguments.len())?;
                Ok(Node::Call(function, self.nodes(arguments)?))
            }
        }
    }

    /// Gathers a tree of the same logic operator into one list of terms.
    fn logic(&mut self, logic: Logic, call: &CallExpr) -> Result<Node, Fault> {
        let mut terms = Vec::new();
        self.gather(call, &mut terms)?;
        Ok(Node::Logic(logic, terms))
    }

    fn gather(&mut self, call: &CallExpr, to: &mut Vec<Node>) -> Result<(), Fault> {
        for argument in &call.args {
            match &argument.expr {
                Expr::Call(inner) if inner.func_name == call.func_name => {
                    self.gather(inner, to)?;
                }
                other => to.push(self.node(other)?),
            }
        }
        Ok(())
    }

    fn index(&mut self, operand: &Expr, index: &Expr) -> Result<Node, Fault> {
        if let Some(key) = text_literal(index) {
            return self.access(operand, key);
        }
        match self.root(operand) {
            Some("steps") => Err(Fault::new(
                "steps are named by literal id, as steps[\"ID\"], not by a computed name",
            )),
            Some("artifacts") => Err(Fault::new(
                "artifacts are named literally, as artifacts[\"STEP/NAME\"], \
                 not by a computed name",
            )),
            _ => {
                let operand = Box::new(self.node(operand)?);
                Ok(Node::Index(operand, Box::new(self.node(index)?)))
            }
        }
    }

    fn has(&mut self, argument: &Expr) -> Result<Node, Fault> {
        let Expr::Select(select) = argument else {
            return Err(Fault::new("has() expects a field, as has(input.name)"));
        };
        match self.place(&select.operand.expr, &select.field)? {
            Some(place) => Ok(Node::HasPlace(place)),
            None => Ok(Node::Has(self.boxed(&select.operand)?, select.field.clone())),
        }
    }

    fn member_call(
        &mut self,
        name: &str,
        target: &IdedExpr,
        arguments: &[IdedExpr],
    ) -> Result<Node, Fault> {
        if let Some(kind) = loop_kind(name) {
            return self.comprehension(kind, name, target, arguments);
        }
        if name == "matches" {
            let Some(pattern) = arguments.first().and_then(|first| text_literal(&first.expr))
            else {
                return Err(Fault::new("matches() expects one literal string as its pattern"));
            };
            expect_arguments(name, arguments.len(), &[1])?;
            return Ok(Node::Matches(self.boxed(target)?, Pattern::parse(pattern)?));
        }
        let function = member_function(name, arguments.len())?;
        let mut nodes = vec![self.node(&target.expr)?];
        nodes.append(&mut self.nodes(arguments)?);
        Ok(Node::Call(function, nodes))
    }

    fn comprehension(
        &mut self,
        kind: LoopKind,
        name: &str,
        target: &IdedExpr,
        arguments: &[IdedExpr],
    ) -> Result<Node, Fault> {
        let accepted: &[usize] = if kind == LoopKind::Map { &[2, 3] } else { &[2] };
        expect_arguments(name, arguments.len(), accepted)?;
        let Some(Expr::Ident(variable)) = arguments.first().map(|first| &first.expr) else {
            return Err(Fault::new(format!("{name}() expects the name of its variable first")));
        };
        if ROOTS.contains(&variable.as_str()) {
            let rule = format!("variable `{variable}` of {name}() hides {variable}, rename it");
            return Err(Fault::new(rule));
        }
        let range = self.node(&target.expr)?;
        if self.variables.len() == LOOPS_DEEP_MAX {
            return Err(Fault::new(format!(
                "all, exists, exists_one, map and filter nest at most {LOOPS_DEEP_MAX} deep"
            )));
        }
        self.variables.push(variable.clone());
        let filter = match arguments {
            [_, filter, _] => Some(self.node(&filter.expr)?),
            _ => None,
        };
        let body = arguments.last().ok_or_else(|| unsupported(name))?;
        let body = self.node(&body.expr)?;
        self.variables.pop();
        Ok(Node::Loop(Box::new(Loop { kind, range, filter, body })))
    }
}

/// `operand.key` or `operand["key"]`, whichever way it is written.
fn literal_access(expr: &Expr) -> Option<(&Expr, &str)> {
    match expr {
        Expr::Select(select) if !select.test => Some((&select.operand.expr, &select.field)),
        Expr::Call(call) if call.func_name == operators::INDEX && call.target.is_none() => {
            let [operand, index] = call.args.as_slice() else { return None };
            Some((&operand.expr, text_literal(&index.expr)?))
        }
        _ => None,
    }
}

fn text_literal(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

fn literal(value: &LiteralValue) -> Result<Literal, Fault> {
    match value {
        LiteralValue::Null => Ok(Literal::Null),
        LiteralValue::Boolean(value) => Ok(Literal::Bool(*value.inner())),
        LiteralValue::Int(value) => Ok(Literal::Int(*value.inner())),
        LiteralValue::UInt(value) => Ok(Literal::UInt(*value.inner())),
        LiteralValue::Double(value) => Ok(Literal::Double(*value.inner())),
        LiteralValue::String(value) => Ok(Literal::Text(value.inner().to_owned())),
        LiteralValue::Bytes(_) => Err(unsupported("a bytes literal")),
    }
}

fn unsupported(what: &str) -> Fault {
    Fault::new(format!("{what} is not supported, values are those of JSON"))
}

fn secret_fault(which: &str) -> Fault {
    Fault::new(format!(
        "{which} can only stand alone, as ${{{{ secrets.NAME }}}}: the worker fills it in, and no \
         expression sees it"
    ))
}
