//! The evaluator: a total function of a program and a context. It recurses once a node, which the
//! tree's depth bounds, and charges a budget, which bounds its time and its memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::functions::call;
use crate::item::{Item, Object};
use crate::limits::{BYTES_PER_COST, COST_MAX};
use crate::node::{Logic, Loop, LoopKind, Node, Operator, Program};
use crate::operators::{binary, negate};
use crate::places::{element, has_place, missing_field, no_element, not_a_map, read, shown};
use crate::{Context, Fault};

/// What is left of the budget.
#[derive(Debug)]
pub(crate) struct Meter {
    left: u64,
    spent: bool,
}

impl Meter {
    pub(crate) fn full() -> Self {
        Self { left: COST_MAX, spent: false }
    }

    pub(crate) fn charge(&mut self, units: u64) -> Result<(), Fault> {
        match self.left.checked_sub(units) {
            Some(left) if !self.spent => {
                self.left = left;
                Ok(())
            }
            _ => {
                self.spent = true;
                Err(Fault::new(format!("expression costs more than {COST_MAX} steps")))
            }
        }
    }

    pub(crate) fn charge_bytes(&mut self, bytes: usize) -> Result<(), Fault> {
        self.charge((bytes / BYTES_PER_COST) as u64 + 1)
    }
}

/// Evaluates a program; what it costs is taken from the meter.
pub(crate) fn evaluate<'a>(
    program: &'a Program,
    context: &'a Context,
    meter: &mut Meter,
) -> Result<Item<'a>, Fault> {
    let mut scope = Scope { context, variables: Vec::new(), meter };
    scope.node(&program.root)
}

struct Scope<'a, 'm> {
    context: &'a Context,
    /// Values of the loop variables, outermost first.
    variables: Vec<Item<'a>>,
    meter: &'m mut Meter,
}

impl<'a> Scope<'a, '_> {
    /// Each arm is a call, so that this frame, the one that recurses, stays small.
    fn node(&mut self, node: &'a Node) -> Result<Item<'a>, Fault> {
        self.meter.charge(1)?;
        match node {
            Node::Literal(literal) => Ok(Item::from_literal(literal)),
            Node::Read(place) => read(self.context, place),
            Node::HasPlace(place) => has_place(self.context, place),
            Node::Variable(position) => Ok(self.variable(*position)),
            Node::Field(operand, field) => self.field(operand, field),
            Node::Has(operand, field) => self.has(operand, field),
            Node::Index(operand, index) => self.index(operand, index),
            Node::List(elements) => Ok(Item::list(self.nodes(elements)?)),
            Node::Map(entries) => self.map(entries),
            Node::Not(operand) => Ok(Item::Bool(!self.bool(operand, "!")?)),
            Node::Negate(operand) => negate(self.node(operand)?),
            Node::Logic(logic, terms) => self.logic(*logic, terms),
            Node::Binary(operator, operands) => self.binary(*operator, operands),
            Node::Conditional(branches) => self.conditional(branches),
            Node::Call(function, arguments) => {
                let arguments = self.nodes(arguments)?;
                call(*function, arguments, self.meter)
            }
            Node::Matches(operand, pattern) => self.matches(operand, pattern),
            Node::Loop(parts) => self.run_loop(parts),
        }
    }

    fn nodes(&mut self, nodes: &'a [Node]) -> Result<Vec<Item<'a>>, Fault> {
        nodes.iter().map(|node| self.node(node)).collect()
    }

    fn variable(&self, position: usize) -> Item<'a> {
        self.variables.get(position).cloned().unwrap_or(Item::Null)
    }

    fn bool(&mut self, node: &'a Node, of: &str) -> Result<bool, Fault> {
        match self.node(node)? {
            Item::Bool(value) => Ok(value),
            other => Err(Fault::new(format!("{of} expects a bool, found {}", other.type_name()))),
        }
    }

    fn field(&mut self, operand: &'a Node, field: &str) -> Result<Item<'a>, Fault> {
        let value = self.node(operand)?;
        let Item::Map(object) = &value else {
            return Err(not_a_map(operand, &value, field));
        };
        object.get(field).ok_or_else(|| missing_field(operand, object, field))
    }

    fn has(&mut self, operand: &'a Node, field: &str) -> Result<Item<'a>, Fault> {
        match self.node(operand)? {
            Item::Map(object) => Ok(Item::Bool(object.get(field).is_some())),
            other => Err(not_a_map(operand, &other, field)),
        }
    }

    fn index(&mut self, operand: &'a Node, index: &'a Node) -> Result<Item<'a>, Fault> {
        match (self.node(operand)?, self.node(index)?) {
            (Item::Map(object), Item::Text(key)) => {
                self.meter.charge_bytes(key.len())?;
                object.get(&key).ok_or_else(|| missing_field(operand, &object, &key))
            }
            (Item::List(list), position) => {
                element(&list, &position).ok_or_else(|| no_element(operand, &list, &position))
            }
            (value, key) => Err(Fault::new(format!(
                "{} is a {} and cannot be indexed by a {}",
                operand.path(),
                value.type_name(),
                key.type_name()
            ))),
        }
    }

    fn map(&mut self, entries: &'a [(Node, Node)]) -> Result<Item<'a>, Fault> {
        let mut fields = BTreeMap::new();
        for (key, value) in entries {
            let key = match self.node(key)? {
                Item::Text(key) => key,
                other => {
                    let found = other.type_name();
                    return Err(Fault::new(format!("map key expects a string, found {found}")));
                }
            };
            self.meter.charge_bytes(key.len())?;
            if fields.insert(Rc::from(&*key), self.node(value)?).is_some() {
                return Err(Fault::new(format!("map has the key `{}` twice", shown(&key))));
            }
        }
        Ok(Item::Map(Object::Shared(Rc::new(fields))))
    }

    fn logic(&mut self, logic: Logic, terms: &'a [Node]) -> Result<Item<'a>, Fault> {
        let sign = match logic {
            Logic::And => "&&",
            Logic::Or => "||",
        };
        let mut decision = Decision::new(logic);
        for term in terms {
            let answer = self.bool(term, sign);
            if decision.take(answer, self.meter)? {
                break;
            }
        }
        decision.end().map(Item::Bool)
    }

    fn binary(&mut self, operator: Operator, operands: &'a [Node; 2]) -> Result<Item<'a>, Fault> {
        let left = self.node(&operands[0])?;
        let right = self.node(&operands[1])?;
        binary(operator, left, right, self.meter)
    }

    fn conditional(&mut self, branches: &'a [Node; 3]) -> Result<Item<'a>, Fault> {
        let [condition, yes, no] = branches;
        if self.bool(condition, "? :")? { self.node(yes) } else { self.node(no) }
    }

    fn matches(
        &mut self,
        operand: &'a Node,
        pattern: &crate::patterns::Pattern,
    ) -> Result<Item<'a>, Fault> {
        match self.node(operand)? {
            Item::Text(text) => {
                self.meter.charge(pattern.cost(&text))?;
                pattern.is_match(&text).map(Item::Bool)
            }
            other => {
                let found = other.type_name();
                Err(Fault::new(format!("matches() expects a string, found {found}")))
            }
        }
    }

    fn run_loop(&mut self, parts: &'a Loop) -> Result<Item<'a>, Fault> {
        let items: Vec<Item<'a>> = match self.node(&parts.range)? {
            Item::List(list) => {
                self.meter.charge(list.len() as u64)?;
                list.iter().collect()
            }
            Item::Map(object) => {
                self.meter.charge(object.len() as u64)?;
                object.keys().into_iter().map(Item::Text).collect()
            }
            other => {
                let found = other.type_name();
                let name = parts.kind.name();
                return Err(Fault::new(format!("{name}() expects a list or map, found {found}")));
            }
        };
        match parts.kind {
            LoopKind::All => self.decide(Logic::And, parts, items),
            LoopKind::Exists => self.decide(Logic::Or, parts, items),
            LoopKind::ExistsOne => {
                let kept = self.select(&parts.body, parts.kind, items)?;
                Ok(Item::Bool(kept.len() == 1))
            }
            LoopKind::Filter => Ok(Item::list(self.select(&parts.body, parts.kind, items)?)),
            LoopKind::Map => {
                let items = match &parts.filter {
                    Some(filter) => self.select(filter, parts.kind, items)?,
                    None => items,
                };
                let mut made = Vec::with_capacity(items.len());
                for item in items {
                    made.push(self.with_variable(item, |scope| scope.node(&parts.body))?);
                }
                Ok(Item::list(made))
            }
        }
    }

    fn decide(
        &mut self,
        logic: Logic,
        parts: &'a Loop,
        items: Vec<Item<'a>>,
    ) -> Result<Item<'a>, Fault> {
        let mut decision = Decision::new(logic);
        for item in items {
            let name = parts.kind.name();
            let answer = self.with_variable(item, |scope| scope.bool(&parts.body, name));
            if decision.take(answer, self.meter)? {
                break;
            }
        }
        decision.end().map(Item::Bool)
    }

    fn select(
        &mut self,
        condition: &'a Node,
        kind: LoopKind,
        items: Vec<Item<'a>>,
    ) -> Result<Vec<Item<'a>>, Fault> {
        let mut kept = Vec::new();
        for item in items {
            let name = kind.name();
            if self.with_variable(item.clone(), |scope| scope.bool(condition, name))? {
                kept.push(item);
            }
        }
        Ok(kept)
    }

    fn with_variable<T>(&mut self, item: Item<'a>, run: impl FnOnce(&mut Self) -> T) -> T {
        self.variables.push(item);
        let result = run(self);
        self.variables.pop();
        result
    }
}

/// The answer of a run of `&&` or `||`: the first term that decides wins over faults of others.
struct Decision {
    decisive: bool,
    decided: bool,
    fault: Option<Fault>,
}

impl Decision {
    fn new(logic: Logic) -> Self {
        Self { decisive: logic == Logic::Or, decided: false, fault: None }
    }

    /// Whether this answer decides. A fault is kept for later, unless the budget is spent.
    fn take(&mut self, answer: Result<bool, Fault>, meter: &Meter) -> Result<bool, Fault> {
        match answer {
            Ok(answer) => self.decided = answer == self.decisive,
            Err(fault) if meter.spent => return Err(fault),
            Err(fault) => {
                self.fault.get_or_insert(fault);
            }
        }
        Ok(self.decided)
    }

    fn end(self) -> Result<bool, Fault> {
        match self.fault {
            Some(fault) if !self.decided => Err(fault),
            _ => Ok(self.decided == self.decisive),
        }
    }
}

impl LoopKind {
    fn name(self) -> &'static str {
        match self {
            LoopKind::All => "all",
            LoopKind::Exists => "exists",
            LoopKind::ExistsOne => "exists_one",
            LoopKind::Map => "map",
            LoopKind::Filter => "filter",
        }
    }
}
