//! The tree that is evaluated. Every name in it is known, every function exists and has the right
//! number of arguments, so the evaluator faults over values only.

/// One parsed expression with what it refers to.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) root: Node,
    pub(crate) references: crate::References,
}

#[derive(Debug)]
pub(crate) enum Node {
    Literal(Literal),
    Read(Place),
    /// `has()` of a place that may be missing.
    HasPlace(Place),
    /// A variable of an enclosing loop, by its position from the outermost.
    Variable(usize),
    Field(Box<Node>, String),
    Has(Box<Node>, String),
    Index(Box<Node>, Box<Node>),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    Not(Box<Node>),
    Negate(Box<Node>),
    /// All terms of a run of `&&`, or of `||`.
    Logic(Logic, Vec<Node>),
    Binary(Operator, Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
    Call(Function, Vec<Node>),
    Matches(Box<Node>, crate::patterns::Pattern),
    Loop(Box<Loop>),
}

#[derive(Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    Text(String),
}

/// Something the context holds, by its literal name.
#[derive(Debug)]
pub(crate) enum Place {
    Input,
    Failure,
    Effect,
    PlanDir,
    StepStatus(String),
    StepOutput(String),
    ArtifactBytes(String),
    ArtifactSha256(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

impl Operator {
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::Remainder => "%",
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::Less => "<",
            Operator::LessOrEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterOrEqual => ">=",
            Operator::In => "in",
        }
    }
}

/// A function; the target of a member call is its first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Size,
    String,
    Int,
    UInt,
    Double,
    Contains,
    StartsWith,
    EndsWith,
    Trim,
    Split,
    Join,
}

#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) kind: LoopKind,
    pub(crate) range: Node,
    /// The filter of `map(x, filter, body)`.
    pub(crate) filter: Option<Node>,
    pub(crate) body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
}

impl Node {
    /// The text of a path, for faults: `input.a.b`; other nodes have no short name.
    pub(crate) fn path(&self) -> String {
        match self {
            Node::Read(place) | Node::HasPlace(place) => place.path(),
            Node::Field(operand, field) | Node::Has(operand, field) => {
                format!("{}.{field}", operand.path())
            }
            Node::Index(operand, index) => match &**index {
                Node::Literal(Literal::Int(position)) => format!("{}[{position}]", operand.path()),
                Node::Literal(Literal::Text(key)) => format!("{}[{key:?}]", operand.path()),
                _ => format!("{}[…]", operand.path()),
            },
            _ => "the value".into(),
        }
    }
}

impl Place {
    pub(crate) fn path(&self) -> String {
        match self {
            Place::Input => "input".into(),
            Place::Failure => "failure".into(),
            Place::Effect => "effect".into(),
            Place::PlanDir => "plan.dir".into(),
            Place::StepStatus(step) => format!("steps[{step:?}].status"),
            Place::StepOutput(step) => format!("steps[{step:?}].output"),
            Place::ArtifactBytes(key) => format!("artifacts[{key:?}].bytes"),
            Place::ArtifactSha256(key) => format!("artifacts[{key:?}].sha256"),
        }
    }
}
